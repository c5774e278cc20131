"""dkl.sweep: compares parameters that need no further pass (beta, rho, sizes) by held-out alignment on sums by fold."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.data.together.rows import GroupsAndTimes
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import encode_targets
from dkl.kernels.threads import one_blas_thread
from dkl.linear.fitting import Run
from dkl.linear.judge import Folds, mean_over_rows, ranked
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.parameters import check_parameters, drawn_seed
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.potential_sums import PotentialProblem, potential_record, sums_by_fold, total_weight
from dkl.methods.validation import first_targets, rows_to_fit, rows_with_category_numbers, without_splits
from dkl.model_selection.folds import fold_views
from dkl.passes.devices import computing_device
from dkl.passes.loop import run_pass
from dkl.progress import resolve_progress
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Record, RowSample

# The parameters whose change needs no further pass, because they act on the results of the pass alone.
FREE = {
    AlignedFeatures: ("rho", "k", "n_features", "estimator"),
    PosteriorFeatures: ("beta", "n_features", "estimator"),
}
# Those of them that only choose among candidates with given weights, so that the weights need not be computed again.
_CHOOSING = frozenset({"n_features", "estimator"})
Swept = AlignedFeatures | PosteriorFeatures

# The size of a kernel is estimated on _PAIRS pairs of rows, of which _MAPPED_PAIRS are mapped at once to bound memory.
_PAIRS = 512
_MAPPED_PAIRS = 32


@dataclass(eq=False)
class Sweep:
    """The result of `dkl.sweep`.

    Attributes
    ----------
    best_params_ : dict
    best_score_ : float
        The largest mean held-out alignment.
    best_learner_ : fitted learner
        The learner with the best parameters, fitted to all rows.
    table : pandas.DataFrame
        One row for each combination: its alignment, the standard deviation between folds, the parameters.
    seconds : float
        The time to evaluate all combinations, without the passes.
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_learner_: Any
    table: Any
    seconds: float

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={value}" for name, value in self.best_params_.items())
        return (
            f"Sweep: {len(self.table):,} combinations in {self.seconds:.2g} s after the passes; best held-out "
            f"alignment {self.best_score_:.4g} with {best}"
        )

    def _repr_html_(self) -> str:
        return f"<p>{self!r}</p>{self.table.sort_values('alignment', ascending=False).to_html(max_rows=12)}"


def sweep(
    learner: Swept,
    X: object,
    y: object = None,
    *,
    values: Mapping[str, Sequence[Any]],
    folds: int | float = 5,
    sample_weight: object = None,
    random_state: int | np.random.RandomState | None = None,
) -> Sweep:
    """Compare all combinations of values of parameters that need no further pass, by held-out kernel alignment.

    One pass computes the class sums of the pool by fold. For each combination and fold, candidates are weighed and
    chosen by the sums of the other folds. The score is the centred alignment of the resulting kernel with the targets,
    between rows of the fold and rows of the others, divided by the size of the kernel on pairs of rows. (Without this
    division the alignment is largest for the single best feature.)

    Parameters
    ----------
    learner : AlignedFeatures or PosteriorFeatures
        Not changed; a copy is fitted.
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or (n, t), or None
        The targets; None if X is a Dataset, which has its own.
    values : mapping of str to sequence
        The values to compare, of rho, k, n_features, estimator for `AlignedFeatures`, and of beta, n_features,
        estimator for `PosteriorFeatures`.
    folds : int or float
        As in `dkl.tune`. If columns hold categories of many values, only the first fold is scored, since target means
        are learned without the rows of that fold alone.
    sample_weight : str, array of shape (n,), or None
        A name is a column of a data frame, which is then no feature.
    random_state : int, RandomState or None
        Seed of the folds and the pairs, and of the learner if its own is None.

    Returns
    -------
    Sweep

    Raises
    ------
    ValueError
        For a parameter that needs another pass, no values, or a fold without rows.

    References
    ----------
    Cortes, Mohri & Rostamizadeh 2012, "Algorithms for learning kernels based on centered alignment".

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.aligned.learner import AlignedFeatures
    >>> from dkl.model_selection.sweep import sweep
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = AlignedFeatures(n_candidates=1_000, scaling="quantile")
    >>> found = sweep(learner, X, y, values={"rho": [0.0, 1.0, 10.0], "n_features": [20, 100]}, random_state=0)
    >>> len(found.table), found.best_params_["n_features"]
    (6, 100)
    """
    import pandas as pd

    combinations = _combinations(type(learner), values)
    seed = drawn_seed(random_state)
    learner = clone(learner)
    if learner.random_state is None:
        learner.set_params(random_state=seed)
    rows = GroupsAndTimes(X)
    dataset = rows_to_fit(learner, rows, y, rows.weights(sample_weight), supervised=True)
    dataset = without_splits(dataset)
    parts = Folds.of(folds, seed)
    parts = parts.along_time() if dataset.schema.held_by == "time" else parts
    # raises ValueError for folds without rows
    fold_views(dataset, parts)
    for combination in combinations:
        candidate = copy.copy(learner).set_params(**combination)
        check_parameters(candidate)
        candidate._check_rest()
    if dataset.schema.has_codes:
        # Target means are learned once for all combinations, without the rows of one fold: only it can be scored.
        parts = replace(parts, count=1)
        run = Run(publish=resolve_progress(learner.progress), memory_limit=learner.memory_limit)
        dataset = rows_with_category_numbers(learner, dataset, parts.held_out, run)
    fitted = learner.fit(dataset)
    judge = Judge.of(fitted, dataset, parts, seed)
    started = time.perf_counter()
    # The products are so small that starting threads would take longer than computing them.
    with one_blas_thread():
        scores = np.array([judge.alignments(fitted, combination) for combination in combinations])
    seconds = time.perf_counter() - started
    means = mean_over_rows(scores, judge.weights)
    best = ranked(means)[0]
    return Sweep(
        best_params_=combinations[best],
        best_score_=float(means[best]),
        best_learner_=fitted._chosen_again(**combinations[best]),
        table=pd.DataFrame({"alignment": means, "deviation": scores.std(axis=1)}).join(pd.DataFrame(combinations)),
        seconds=seconds,
    )


def _combinations(learner_class: type, values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values; combinations with the same weights of candidates follow each other.

    Raises
    ------
    ValueError
        If the class has no such parameters, or a parameter needs another pass.
    """
    free = next((names for kind, names in FREE.items() if issubclass(learner_class, kind)), None)
    if free is None:
        raise ValueError(
            f"learner is of class {learner_class.__name__}; a sweep is for AlignedFeatures and PosteriorFeatures, "
            "whose choice acts on the sums of one pass; use dkl.tune for others"
        )
    if not isinstance(values, Mapping) or not values or not all(len(given) for given in values.values()):
        raise ValueError(f"values is {values!r}; expected lists of values, such as {{{free[0]!r}: [0.1, 1.0]}}")
    for name in values:
        if name not in free:
            raise ValueError(
                f"values names {name!r}, and of {learner_class.__name__} only {', '.join(free)} need no further pass; "
                "use dkl.tune for others"
            )
    # The parameters that do not change weights vary fastest, so that weights are computed once for all their values.
    names = sorted(values, key=lambda name: name in _CHOOSING)
    return [dict(zip(names, given, strict=True)) for given in product(*(values[name] for name in names))]


@dataclass(frozen=True, eq=False)
class Judge:
    """Held-out alignments, from the sums of each fold and the candidates' kernels on pairs of rows.

    Parameters
    ----------
    values : list of ndarray of shape (D,)
        For each fold the alignments or losses of the candidates on the rows outside it, from which weights follow.
    totals : list of float
        For each fold the weight of the rows outside it.
    between : list of ndarray of shape (D,)
        For each fold the mean centred alignment of the candidates with the targets over pairs of a row in the fold and
        a row outside it.
    pairs : ndarray of shape (D, P), float32
        The centred kernel of each candidate on pairs of rows.
    size : float
        The root mean square of the centred kernel of the targets over pairs of rows.
    weights : ndarray of shape (F,)
        The weight of the rows of each fold.
    last : dict
        A cache: the last weights of candidates, by the parameters that determine them.
    """

    values: list[np.ndarray]
    totals: list[float]
    between: list[np.ndarray]
    pairs: np.ndarray
    size: float
    weights: np.ndarray
    last: dict[Any, list[np.ndarray]] = field(default_factory=dict)

    @classmethod
    def of(cls, fitted: Swept, dataset: Dataset, folds: Folds, seed: int) -> Judge:
        """Run the pass that computes the sums by fold.

        Parameters
        ----------
        fitted : AlignedFeatures or PosteriorFeatures
        dataset : Dataset
        folds : Folds
        seed : int
            Seed of the pairs of rows.
        """
        problem = replace(fitted._summing(dataset)[1], pivot=first_targets(dataset))
        records: list[Record] = [fold_record(problem, folds), RowSample("pairs", 2 * _PAIRS, seed)]
        by_fold, rows = run_pass(
            dataset.source,
            records,
            publish=resolve_progress(fitted.progress),
            memory_limit=fitted.memory_limit,
            device=computing_device(fitted.device),
        ).results
        # the sums of each fold, and last those of rows in no fold
        inside = [{name: sums[f] for name, sums in by_fold.items()} for f in range(folds.count + 1)]
        driver, values, totals, between, weights = fitted._driver, [], [], [], []
        for f in range(folds.count):
            # The sums of the other folds are added; subtracting from the total would lose digits.
            others = [inside[g] for g in folds.outside(f)]
            outside = {name: np.sum([sums[name] for sums in others], axis=0) for name in inside[f]}
            state = driver.step(problem, driver.init(problem), [outside])
            values.append(np.asarray(state.values))
            totals.append(state.total)
            weights.append(total_weight(problem, inside[f]))
            alike = _centred(problem, outside)
            if problem.similarity is not None:
                # each factor has sqrt(2) for the similarity 2 I of centred labels, which S replaces
                alike = alike @ problem.similarity / 2.0
            between.append(np.sum(_centred(problem, inside[f]) * alike, axis=(0, 2)))
        # The mean of the features over all rows, (parts, D): the sum over classes, or in regression the sums for the
        # last target, a column of ones.
        features = [problem.features_of(sums) for sums in inside]
        summed = [of_fold[:, :, -1] if problem.n_classes is None else of_fold.sum(axis=2) for of_fold in features]
        means = np.sum(summed, axis=0) / sum(total_weight(problem, sums) for sums in inside)
        pairs = centred_pairs(rows, problem.candidates, means, dtype=problem.dtype)
        # The root mean square of the targets' centred kernel over pairs of rows. Rows were drawn by their weights, and
        # have equal weights in the sample.
        targets = encode_targets(rows, problem.n_classes, problem.class_weight)
        targets = targets if problem.n_classes is not None else targets[:, :-1]
        targets = targets / rows.weights[:, None]
        targets = targets - targets.mean(axis=0)
        gram = targets.T @ targets
        if problem.similarity is not None:
            # |T S T'|^2 = tr(S G S G) with G = T'T, of targets T
            product = problem.similarity @ gram
            size = float(np.sqrt(np.sum(product * product.T)) / rows.n_rows)
        else:
            factor = 1.0 if problem.n_classes is None else 2.0
            size = factor * float(np.linalg.norm(gram) / rows.n_rows)
        return cls(values, totals, between, pairs, size, np.array(weights))

    def alignments(self, fitted: Swept, chosen: Mapping[str, Any]) -> np.ndarray:
        """The held-out alignment, by fold (F,), of the features that a learner with these parameters chooses."""
        learner = copy.copy(fitted)
        # Names and values have been checked before; `set_params` would take as long as everything else here.
        learner.__dict__.update(chosen)
        of_folds = []
        for weights, between in zip(self._weighed(learner, chosen), self.between, strict=True):
            choice = learner.chosen(weights)
            # The learned kernel is k = sum_j q_j k_j with q_j the square of the amplitude of candidate j. Its centred
            # alignment with the targets between two sets of rows is sum_j q_j between_j, over the size of k and that of
            # the targets' kernel (Cortes, Mohri & Rostamizadeh 2012, definition 4).
            shares = choice.amplitudes**2
            kernel = shares.astype(np.float32) @ self.pairs[choice.index]
            length = float(np.sqrt(np.mean(np.square(kernel, dtype=np.float64))))
            of_folds.append(float(shares @ between[choice.index]) / max(length * self.size, np.finfo(float).tiny))
        return np.array(of_folds)

    def _weighed(self, learner: Swept, chosen: Mapping[str, Any]) -> list[np.ndarray]:
        """The weights of the candidates learned without each fold; cached for the last parameters."""
        key = tuple((name, value) for name, value in chosen.items() if name not in _CHOOSING)
        if key not in self.last:
            self.last.clear()
            self.last[key] = [learner.weighed(v, n) for v, n in zip(self.values, self.totals, strict=True)]
        return self.last[key]


def fold_record(problem: PotentialProblem, folds: Folds) -> BlockSum:
    """The record of the potentials' sums for each fold and, last, for the rows in no fold."""
    whole = potential_record(problem)
    accumulators = {
        name: Accumulator((folds.count + 1, *of_all.shape), of_all.dtype) for name, of_all in whole.accumulators.items()
    }
    operands = {**whole.operands, "folds": folds}
    return BlockSum("potentials by fold", sums_by_fold, accumulators, operands, cost=whole.cost)


def centred_pairs(rows: Block, candidates: FeatureMap, means: np.ndarray, *, dtype: str) -> np.ndarray:
    """The centred kernel of each candidate on neighbouring rows of a sample, (D, P) float32.

    Parameters
    ----------
    rows : Block
        2 P or 2 P + 1 rows; rows 2 p and 2 p + 1 are a pair.
    candidates : FeatureMap
        With amplitudes of 1.
    means : ndarray of shape (parts, D)
        The means of the features over all rows.
    dtype : {"float32", "float64"}
    """
    parts, size = means.shape
    kernels = np.empty((size, rows.n_rows // 2), np.float32)
    for start in range(0, kernels.shape[1], _MAPPED_PAIRS):
        stop = min(start + _MAPPED_PAIRS, kernels.shape[1])
        phi = np.asarray(map_rows(rows.X[2 * start : 2 * stop], candidates, dtype)).reshape(-1, parts, size) - means
        kernels[:, start:stop] = np.einsum("pmd,pmd->dp", phi[0::2], phi[1::2])
    return kernels


def _centred(problem: PotentialProblem, sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """The mean over rows of the features times centred targets, (parts, D, K)."""
    # sum_i phi(x_i) (y_i - mean) = sum_i phi(x_i) y_i - mean sum_i phi(x_i). For indicators of classes the factor
    # sqrt(2) makes the product of two such sums equal to that of targets -1 and +1.
    features, targets, weight = problem.features_of(sums), sums["targets"], total_weight(problem, sums)
    if problem.n_classes is None:
        return (features[:, :, :-1] - features[:, :, -1:] * (targets[:-1] / weight)) / weight
    return np.sqrt(2.0) * (features - features.sum(axis=2, keepdims=True) * (targets / weight)) / weight
