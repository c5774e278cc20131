"""The candidates of a chosen penalty of a Newton head, all of them in the same passes, and their held-out scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.head import MOST_FEATURES, NewtonProblem, NewtonState, fold_sums
from dkl.linear.judge import (
    JUDGED_MULTIPLIERS,
    Folds,
    PenaltyChoice,
    SeenRows,
    folds_of,
    last_least,
    out_of_fold,
    scores_of_folds,
)
from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import held_out_block
from dkl.protocols.records import Accumulator, BlockSum, Cost

# C, the factor of the summed loss, for features of mean squared length 1, from the strongest penalty to the weakest.
PENALTIES = {
    "squared_hinge": (0.01, 0.1, 1.0, 10.0, 100.0),
    "squared_error": tuple(10.0 ** (0.5 * step) for step in range(-4, 9)),
}
OTHER_PENALTIES = tuple(10.0**step for step in range(-3, 5))
# The same for jointly fitted classes, in this order, since fits with strong penalties cost least.
_JOINT_PENALTIES = tuple(10.0**step for step in range(-2, 7))

# The most Newton steps of a candidate before it is judged: from a given start, with fixed Hessians, from zero, and for
# the squared error, whose first step is exact.
_STEPS_WARM, _STEPS_FIXED, _STEPS_COLD, _STEPS_SQUARE = 2, 2, 3, 1
_DECREMENT = 0.01
# The same for all other losses, with the share of the objective at which steps end, smaller since even the best model
# lowers the objective by little.
_STEPS_OTHERS, _DECREMENT_OF_OTHERS = 6, 1e-4
# The same for jointly fitted classes, whose steps are cheap, and many with weak penalties.
_JOINT_STEPS, _JOINT_DECREMENT = 100, 5e-4
# On wide rows only every third penalty of the squared error is tried.
_WIDE_PENALTIES = 3
# Penalties that are compared near the one which fewer features preferred.
NEIGHBOURS = 3
# The same for jointly fitted classes, at most: the stronger neighbour first, then weaker ones.
_MOST_JOINT = 4


def comparing_loss(loss: str, *, has_classes: bool) -> str:
    """The loss on held-out rows that compares models which minimise `loss`: of classes by their margins.

    >>> comparing_loss("squared_error", has_classes=True), comparing_loss("log_loss", has_classes=True)
    ('squared_hinge', 'log_loss')
    """
    return "squared_hinge" if has_classes and loss == "squared_error" else loss


@dataclass(frozen=True, eq=False)
class Candidates:
    """Linear models for every output, penalty and fold: model ``(k * A + a) * F + f`` of a Newton problem.

    Parameters
    ----------
    problem : NewtonProblem
        The Newton problem of all models.
    folds : Folds
    alphas : ndarray of shape (A,)
        The penalties, from the strongest to the weakest.
    strengths : ndarray of shape (A,)
        The same as the C of summed losses, for features of mean squared length 1: comparable between feature maps.
    n_outputs : int
        K, the models for one penalty and fold.
    are_near : bool
        Whether these are the penalties near an earlier choice, which are the same in every fold.
    calibrated : bool
        Whether the held-out rows also calibrate the temperature of probabilities; only for classes.
    rule : str
        The name in `PENALTY_RULES` by which one is chosen.
    """

    problem: NewtonProblem
    folds: Folds
    alphas: np.ndarray
    strengths: np.ndarray
    n_outputs: int
    are_near: bool = False
    calibrated: bool = False
    rule: str = "auto"

    def judged(self, state: NewtonState) -> BlockSum:
        """The record that judges candidates on held-out rows, at their accepted points and after their next steps."""
        shape = self.n_outputs, len(self.alphas) * self.folds.count, -1
        versions = [version.reshape(shape) for version in self._versions(state)]
        models = versions[0][None] if len(versions) == 1 else np.stack(versions)
        return self._judging(models, self._judging_loss(), JUDGED_MULTIPLIERS if self.calibrated else np.zeros(0))

    def _versions(self, state: NewtonState) -> list[np.ndarray]:
        """The accepted points and those after the next steps; for squared errors only the latter, the optimum."""
        return [state.proposal] if self.problem.loss == "squared_error" else [state.coefficients, state.proposal]

    def judged_by_sums(self, state: NewtonState) -> dict[str, np.ndarray] | None:
        """The sums of `judged`, computed from the sums of each fold without a pass; None if they do not suffice.

        They do not for classes, which are judged by margins.
        """
        if state.by_fold is None or self.problem.targets.n_classes is not None:
            return None
        A, F = len(self.alphas), self.folds.count
        moves = state.directions.reshape(self.n_outputs, A, F, self.problem.width)
        _, *folds = fold_sums(state.by_fold)
        # a step from the start is a model of the residuals at the start
        losses = [each.losses(moves[:, :, fold], self.problem.dtype) for fold, each in enumerate(folds)]
        computed = [loss for loss in losses if loss is not None]
        if len(computed) < F:
            return None
        loss = np.stack(computed, axis=2).mean(axis=0).reshape(1, -1)
        return {"loss": loss, "weight": np.tile([each.weight for each in folds], A)}

    @property
    def is_joint(self) -> bool:
        """Whether the classes are fitted jointly, so that none is a problem of its own."""
        return self.problem.loss == "log_loss" and self.n_outputs > 1

    def joint_problems(self, alpha: float) -> list[NewtonProblem]:
        """The joint problem of all classes for each fold, on the rows outside it, with one penalty."""
        return [
            replace(
                self.problem.jointly(),
                targets=replace(self._outputs(), kept=SeenRows(self.folds, fold, self.problem.targets.kept)),
                alpha=alpha,
                max_steps=_JOINT_STEPS,
                decrement=_JOINT_DECREMENT,
                token=self.problem.token,
            )
            for fold in range(self.folds.count)
        ]

    def judged_jointly(self, models: np.ndarray) -> BlockSum:
        """The record that judges joint models, (K, folds, m + 1), by the log loss of all classes."""
        return self._judging(models[None], {"name": "softmax"}, np.zeros(0))

    def _outputs(self) -> NewtonTargets:
        """The targets of the models for one penalty and fold."""
        targets, copies = self.problem.targets, len(self.alphas) * self.folds.count
        return replace(targets, models=targets.models[::copies], folds=None, fold=None)

    def _judging(self, models: np.ndarray, loss: dict[str, Any], multipliers: np.ndarray) -> BlockSum:
        """The record that judges models (v, K, c, m + 1); c enumerates the folds of each penalty."""
        each, n_multipliers = models.shape[::2][:2], len(multipliers)
        shapes: dict[str, tuple[int, ...]] = {"loss": each, "weight": (models.shape[2],)}
        if self.problem.targets.n_classes is not None:
            shapes |= {"right": shapes["loss"], "rows": shapes["weight"]}
        if n_multipliers:
            shapes |= dict.fromkeys(("label", "uniform"), (*each, 3, n_multipliers))
        return BlockSum(
            name="held-out scores",
            function=held_out_block,
            accumulators={name: Accumulator(shape) for name, shape in shapes.items()},
            operands={
                "feature_map": self.problem.feature_map,
                "models": models,
                "targets": self._outputs(),
                "folds": self.folds,
                "fold": np.tile(np.arange(self.folds.count), models.shape[2] // self.folds.count),
                "dtype": self.problem.dtype,
                "loss": loss,
                "multipliers": multipliers,
            },
            cost=_JudgingCost(self.problem.feature_map, models[..., 0].size, self.folds, n_multipliers),
        )

    def _judging_loss(self) -> dict[str, Any]:
        """The arguments of `newton_loss` for the outputs."""
        problem = self.problem
        quantiles = None if problem.quantiles is None else problem.quantiles[:: problem.n_models // self.n_outputs]
        name = comparing_loss(problem.loss, has_classes=problem.targets.n_classes is not None)
        return {"name": name, "epsilon": problem.epsilon, "quantiles": quantiles}

    def choose(self, state: NewtonState, sums: dict[str, np.ndarray]) -> PenaltyChoice:
        """The scores of the penalties over all folds, each at the better of its accepted points and its next steps.

        Raises
        ------
        ValueError
            If no row is held out.
        """
        A, F = len(self.alphas), self.folds.count
        scores, accuracies, weight = out_of_fold(sums, (A, F), self.folds.held_out)
        # of equal versions the last one is used
        version_of, each = last_least(-scores), np.arange(A)
        accuracies = accuracies[version_of, each] if accuracies.size else np.zeros(0)
        choice = PenaltyChoice(
            self.alphas,
            scores.max(axis=0),
            np.zeros((0, 0)),
            self.strengths,
            accuracies,
            rule=self.rule,
            fold_scores=scores_of_folds(sums, (A, F))[version_of, each],
        )
        models = np.arange(self.problem.n_models).reshape(self.n_outputs, A, F)[:, choice.best]
        start = self._versions(state.of_models(models.ravel()))[version_of[choice.best]]
        start = start.reshape(self.n_outputs, F, -1).mean(axis=1)
        if not self.calibrated:
            return replace(choice, start=start)
        both = np.stack([sums["label"], sums["uniform"]], axis=2)
        calibration = both.reshape(-1, A, F, *both.shape[2:]).sum(axis=2)[version_of, each]
        return replace(choice, start=start, calibration=calibration, judging_weight=weight)


@dataclass(frozen=True, eq=False)
class _JudgingCost:
    """The cost of scoring the held-out rows of a block by all candidates; no other rows are mapped."""

    feature_map: FeatureMap
    n_models: int
    folds: Folds
    n_multipliers: int = 0

    def __call__(self, rows: int, columns: int) -> Cost:
        mapping = mapping_flops(columns, self.feature_map)
        # each row calibrates the models fitted without it, with about twenty operations for each temperature
        calibrating = 20.0 * self.n_multipliers / self.folds.count
        scores = (2.0 * self.feature_map.n_features + calibrating) * self.n_models
        judging = rows * min(1.0, self.folds.held_out.share * self.folds.count)
        return Cost(judging * (mapping + scores), int(judging * 8 * (self.feature_map.n_features + 2 * self.n_models)))


def penalty_candidates(
    base: NewtonProblem,
    held_out: HeldOut,
    *,
    n_rows: float,
    square_length: float,
    start: np.ndarray | None,
    single: bool = False,
    near: PenaltyChoice | None = None,
    calibrated: bool = False,
    rule: str = "auto",
) -> Candidates:
    """Models at the penalties of the loss, on folds of the rows of one problem.

    With `near` they are the three penalties nearest to the best one there, and of very many features every third
    penalty of the squared error. If the Hessians of several classes take more than 64 MiB, penalties are compared on
    the first features alone, as many as do not: each pass would otherwise serve one model, and the best penalty hardly
    depends on the number of features.

    Parameters
    ----------
    base : NewtonProblem
        Its alpha is ignored.
    held_out : HeldOut
        Its share must be positive.
    n_rows : float
    square_length : float
        The mean squared length of mapped rows, by which the penalties are scaled.
    start : ndarray of shape (K, m + 1) or None
        The model of all features from which all candidates start. It is ignored where they have fewer features.
    single : bool
        Use one fold only, however few rows it has.
    near : PenaltyChoice or None
        The choice on fewer features of the same kind: only its best penalty and the neighbours are candidates; for
        jointly fitted classes the stronger neighbour and weaker ones. A choice of one penalty has no neighbours.
    calibrated : bool
    rule : str
        As in `Candidates`.
    """
    if (first := _first_features(base)) is not None:
        # a model of all features does not fit the first ones
        base, start = first, None
    K, folds = base.n_models, folds_of(held_out, n_rows, base.feature_map.n_features)
    folds = replace(folds, count=1) if single else folds
    # features that are all zero have no length, and any penalty will do
    length = square_length if square_length > 0.0 else 1.0
    # of very wide rows the products of each penalty are costly, and steps finer than a decade and a half gain little
    is_costly = base.loss == "squared_error" and base.feature_map.n_features > MOST_FEATURES
    every = _WIDE_PENALTIES if is_costly else 1
    is_joint = base.loss == "log_loss" and K > 1
    others = _JOINT_PENALTIES if is_joint else OTHER_PENALTIES
    strengths = np.array(PENALTIES.get(base.loss, others))[::every]
    if near is not None and len(near.strengths):
        # the best penalty hardly changes with the number of features
        away = np.abs(np.log(strengths / near.strengths[near.best]))
        # of a single penalty only the nearest one is fitted
        nearest = np.sort(np.argsort(away, kind="stable")[: min(NEIGHBOURS, len(near.strengths))])
        # jointly fitted classes continue with weaker penalties while these gain
        is_path = is_joint and len(nearest) > 1
        strengths = strengths[nearest[0] : nearest[0] + _MOST_JOINT] if is_path else strengths[nearest]
    alphas = length / (strengths * base.total_weight)
    copies = len(alphas) * folds.count
    # a single output has cheap Hessians, and exact ones compare penalties slightly better
    fixed = start is not None and folds.count == 1 and K > 1 and base.loss == "squared_hinge"
    if base.loss not in PENALTIES:
        max_steps = _STEPS_OTHERS
    elif base.loss == "squared_error":
        max_steps = _STEPS_SQUARE
    elif start is None:
        max_steps = _STEPS_COLD
    else:
        max_steps = _STEPS_FIXED if fixed else _STEPS_WARM
    targets = replace(
        base.targets,
        models=np.repeat(base.targets.models, copies),
        folds=folds,
        fold=np.tile(np.arange(folds.count), K * len(alphas)),
    )
    problem = replace(
        base,
        targets=targets,
        alpha=np.tile(np.repeat(alphas, folds.count), K),
        decrement=_DECREMENT if base.loss in PENALTIES else _DECREMENT_OF_OTHERS,
        max_steps=max_steps,
        start=None if start is None else np.repeat(start, copies, axis=0),
        fixed=fixed,
        quantiles=None if base.quantiles is None else np.repeat(base.quantiles, copies),
    )
    return Candidates(problem, folds, alphas, strengths, K, are_near=near is not None, calibrated=calibrated, rule=rule)


def _first_features(base: NewtonProblem) -> NewtonProblem | None:
    """The problem on fewer features, if the Hessians of all models take more than 64 MiB; None if they do not."""
    whole = base.feature_map
    kept = max(1, base.most_features_with_hessians // whole.columns_a_frequency)
    has_few = base.loss in ("squared_error", "log_loss") or base.n_models == 1
    if base.is_wide or has_few or kept >= whole.n_frequencies:
        return None
    first = whole.take(np.arange(kept))
    longer = np.sqrt(np.sum(whole.amplitudes**2) / max(np.sum(first.amplitudes**2), np.finfo(np.float64).tiny))
    return replace(base, feature_map=replace(first, amplitudes=longer * first.amplitudes))
