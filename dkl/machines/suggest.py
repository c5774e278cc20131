"""What rows ask for, from one pass and a sample: scaling, kernel, bandwidth, learner and size, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial import distance

from dkl.data.dataset import Dataset
from dkl.data.together.telling import kind_of_split
from dkl.features.families import Coordinates, Gaussian, Laplacian
from dkl.features.scaling import Scaler, ScalingKind
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.moments import moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.linear.fitting import Run
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.base import FeatureLearner
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.preparation.bandwidth import Metric, median_distance
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.preparation.scalers import heavy_tailed_columns, quantile_scaler, scaler_from_moments
from dkl.methods.random_features import RandomFeatures
from dkl.passes.engine import run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample
from dkl.solvers.leave_one_out import left_out_ridge

# rows of which each is predicted by all others: 0.3 s a kernel on one core
JUDGED_ROWS = 1_000
PENALTIES = np.array([1e-3, 1e-2, 1e-1, 1.0, 10.0])
_BANDWIDTHS = (0.35, 1.0, 2.5)
_CLEAR = 2.0
_SIZES = (100, 200, 300, 500, 1_000)
_MOST_CLASSES, _WIDE = 30, 5_000

_KERNELS = {"gaussian": "sqeuclidean", "laplacian": "cityblock"}


@dataclass(frozen=True)
class TriedKernel:
    """One kernel on sampled rows.

    Parameters
    ----------
    scaling : {None, "standard", "quantile"}
    kernel : {"gaussian", "laplacian", "linear"}
    factor : float
        Of the median distance between scaled rows.
    sigma : float
        The bandwidth.
    errors : ndarray of shape (m,)
        The squared error of each row by the machine on the others, at the best penalty.
    score : float
        Accuracy, or R^2.
    freedom : float
        Effective degrees of freedom at the heaviest penalty that is not clearly worse.
    """

    scaling: ScalingKind | None
    kernel: str
    factor: float
    sigma: float
    errors: np.ndarray
    score: float
    freedom: float

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    def beats(self, other: TriedKernel) -> bool:
        """Whether its errors are smaller on the same rows by more than two standard errors."""
        return _is_clear(other.errors - self.errors)


def _is_clear(gains: np.ndarray) -> bool:
    """Whether the mean is above 0 by more than two standard errors."""
    return bool(gains.mean() > _CLEAR * gains.std() / np.sqrt(len(gains)))


@dataclass(frozen=True)
class Advice:
    """What rows ask for.

    Parameters
    ----------
    features : FeatureLearner
        Not fitted.
    machine : mapping
        Parameters of the kernel machine on them; empty for rows without a target.
    reasons : tuple of str
        One sentence a choice.
    """

    features: FeatureLearner
    machine: Mapping[str, Any]
    reasons: tuple[str, ...]

    def reasons_for(self, machine: Any) -> tuple[str, ...]:
        """The reasons, for a machine that takes the features alone and has its own parameters."""
        if all(getattr(machine, name) == value for name, value in self.machine.items()):
            return self.reasons
        own = ", ".join(f"{name}={getattr(machine, name)!r}" for name in self.machine)
        wanted = ", ".join(f"{name}={value!r}" for name, value in self.machine.items())
        return (*self.reasons[:-1], f"Machine: {own}, as given; {wanted} would be suggested.")


def advise(dataset: Dataset, run: Run, seed: int) -> Advice:
    """What these rows ask for; reads them once."""
    sample, scalers = _read(dataset, run, seed)
    if dataset.task is None:
        return _without_target(dataset, sample)
    with one_blas_thread():
        trials = _Judge(sample, scalers, dataset).trials()
    return _decided(dataset, sample, trials)


def _read(dataset: Dataset, run: Run, seed: int) -> tuple[Block, dict[ScalingKind | None, Scaler | None]]:
    """A sample of the rows, and the scalers that may suit them."""
    problem = preparation_problem(dataset, Gaussian(), "quantile", seed)
    records = RowSample("rows to judge on", problem.sample_rows, seed), moments_record(dataset.n_columns)
    found = run_pass(
        dataset.source, records, publish=run.publish, memory_limit=run.memory_limit, device=run.device
    ).results
    sample: Block = found[0]
    if problem.is_sparse:
        return sample, {None: None}
    standard = scaler_from_moments("standard", moments_of(found[1]), problem.passthrough)
    return sample, {"standard": standard, "quantile": quantile_scaler(sample.X, problem.passthrough), None: None}


class _Judge:
    """Kernels judged on sampled rows, each row by the machine on all others."""

    def __init__(self, sample: Block, scalers: Mapping[ScalingKind | None, Scaler | None], dataset: Dataset) -> None:
        self._rows = sample.X[:JUDGED_ROWS]
        self._scalers = scalers
        self._classes = dataset.classes
        y = np.asarray(sample.y)[:JUDGED_ROWS]
        n_classes = dataset.schema.n_classes
        self._marks = y[:, None] == np.arange(n_classes) if n_classes else y.reshape(len(y), -1).astype(np.float64)
        self._mean = self._marks.mean(axis=0)
        spread = np.ones(len(self._mean)) if n_classes else self._marks.std(axis=0)
        self._targets = (self._marks - self._mean) / np.where(spread > 0.0, spread, 1.0)

    def trials(self) -> list[TriedKernel]:
        """The usual kernel first, then what may beat it."""
        first, *others = list(self._of_kernel("gaussian", 1.0))
        best = min([first, *others], key=lambda one: one.error)
        chosen = best.scaling if best.beats(first) else first.scaling
        more = [one for factor in _BANDWIDTHS if factor != 1.0 for one in self._of_kernel("gaussian", factor, chosen)]
        more += list(self._of_kernel("laplacian", 1.0, chosen)) + list(self._of_kernel("linear", 1.0, chosen))
        return [first, *others, *more]

    def _of_kernel(self, kernel: str, factor: float, *chosen: ScalingKind | None) -> Iterator[TriedKernel]:
        if kernel == "laplacian" and sparse.issparse(self._rows):
            return
        for scaling in chosen or self._scalers:
            rows = scale_rows(self._rows, self._scalers[scaling], "float64")
            matrix, sigma = _kernel_of(rows, kernel, factor)
            if matrix is not None:
                yield self._judged(scaling, kernel, factor, matrix, sigma)

    def _judged(
        self, scaling: ScalingKind | None, kernel: str, factor: float, matrix: np.ndarray, sigma: float
    ) -> TriedKernel:
        # the constant is an intercept
        found = left_out_ridge(matrix + 1.0, self._targets, PENALTIES)
        squares = ((found.predictions - self._targets) ** 2).sum(axis=2)
        best = int(np.argmin(squares.mean(axis=1)))
        # the heaviest penalty that does about as well says how much freedom is needed
        enough = max(at for at in range(len(squares)) if not _is_clear(squares[at] - squares[best]))
        score = self._score(found.predictions[best], squares[best])
        return TriedKernel(
            scaling, kernel, factor, sigma, squares[best], score, float(found.degrees_of_freedom[enough])
        )

    def _score(self, predictions: np.ndarray, squares: np.ndarray) -> float:
        if self._classes is None:
            return 1.0 - float(squares.mean() / max((self._targets**2).sum(axis=1).mean(), np.finfo(float).tiny))
        return float(np.mean((predictions + self._mean).argmax(axis=1) == self._marks.argmax(axis=1)))


def _kernel_of(rows: Any, kernel: str, factor: float) -> tuple[np.ndarray | None, float]:
    """The kernel matrix of sampled rows, on a diagonal of mean 1, and its bandwidth; None where rows do not differ."""
    if kernel == "linear":
        products = np.asarray((rows @ rows.T).toarray() if sparse.issparse(rows) else rows @ rows.T)
        scale = np.trace(products) / len(products)
        return (products / scale if scale > 0.0 else None), 1.0
    metric: Metric = "cityblock" if kernel == "laplacian" else "euclidean"
    try:
        sigma = factor * median_distance(rows, metric=metric)
    except ValueError:
        return None, 1.0
    away = _distances(rows, _KERNELS[kernel])
    return np.exp(-away / (2.0 * sigma**2) if kernel == "gaussian" else -away / sigma), sigma


def _distances(rows: Any, metric: str) -> np.ndarray:
    if not sparse.issparse(rows):
        return distance.squareform(distance.pdist(rows, metric))
    products = (rows @ rows.T).toarray()
    norms = np.diag(products)
    return np.maximum(norms[:, None] + norms - 2.0 * products, 0.0)


def _decided(dataset: Dataset, sample: Block, trials: list[TriedKernel]) -> Advice:
    waves = [one for one in trials if one.kernel != "linear"]
    linear = next((one for one in trials if one.kernel == "linear"), None)
    usual = waves[0]
    best = min(waves, key=lambda one: one.error)
    of_scaling = [one for one in waves if one.kernel == "gaussian" and one.factor == 1.0]
    top = min(of_scaling, key=lambda one: one.error)
    scaled = top if top.beats(usual) else usual
    chosen = best if best.beats(scaled) else scaled
    reasons = [_of_rows(dataset, sample), _of_scaling(scaled, of_scaling, dataset, sample)]
    reasons += [_of_kernel(chosen, scaled, waves, dataset)]
    size = _size(chosen.freedom, dataset.total_weight)
    if sparse.issparse(sample.X) and dataset.n_columns > _WIDE:
        features: FeatureLearner = AlignedFeatures(Coordinates(), n_candidates=None, n_features=1_000)
        reasons.append(
            f"Learner: AlignedFeatures on single columns, since there are {dataset.n_columns:,} sparse ones: a search "
            "in so many directions finds little; D = 1,000 columns are kept."
        )
    else:
        features = MarginFeatures(_family(chosen), n_features=size, scaling=chosen.scaling)
        reasons.append(
            f"Learner: MarginFeatures, which looks for features where the machine so far errs; on few rows it draws "
            f"them unless a search gains. D = {size}: the machine on the sample uses {chosen.freedom:.0f} degrees of "
            "freedom, and four columns for each, of at most half as many as rows, are enough."
        )
    if linear is not None and not chosen.beats(linear):
        reasons.append(
            f"A linear machine does as well on the sample ({linear.score:.3f} against {chosen.score:.3f}): compare "
            "with one, it is faster and easier to read."
        )
    machine, why = _machine(dataset)
    reasons.append(f"Machine: {machine['solver']} steps, {why}.")
    return Advice(features, machine, tuple(reasons))


def _size(freedom: float, n_rows: float) -> int:
    """Four columns for each degree of freedom, no more than half as many as rows."""
    wanted = min(4.0 * freedom, n_rows / 2.0)
    return min(_SIZES, key=lambda size: abs(np.log(size / max(wanted, 1.0))))


def _family(trial: TriedKernel) -> Any:
    kind = Laplacian if trial.kernel == "laplacian" else Gaussian
    return kind() if trial.factor == 1.0 else kind(sigma=float(f"{trial.sigma:.4g}"))


def exact_steps(task: str | None) -> dict[str, Any]:
    """Parameters of a kernel machine: Newton steps by the squared loss of the task, the penalty by held-out rows."""
    return {
        "solver": "newton",
        "loss": "squared_hinge" if task == "classification" else "squared_error",
        "alpha": "auto",
    }


def _machine(dataset: Dataset) -> tuple[dict[str, Any], str]:
    """Parameters of the machine, and why."""
    if dataset.classes is not None and len(dataset.classes) > _MOST_CLASSES:
        why = f"since Newton steps form a matrix for each of {dataset.schema.n_classes} classes"
        return {"solver": "sgd", "loss": "hinge"}, why
    return exact_steps(dataset.task), "exact, with the penalty that held-out rows prefer"


def _of_rows(dataset: Dataset, sample: Block) -> str:
    target = {None: "without a target", "regression": "with numbers to predict"}.get(
        dataset.task, f"of {dataset.schema.n_classes} classes"
    )
    kind = "sparse " if dataset.source.is_sparse else ""
    judged = min(JUDGED_ROWS, sample.n_rows)
    return (
        f"Rows: {dataset.n_rows:,} {target} with {dataset.n_columns:,} {kind}columns; {judged:,} of them, drawn at "
        "random, are each predicted by a kernel machine on the others. The machine's own held-out rows are "
        f"{kind_of_split(dataset)}."
    )


def _of_scaling(chosen: TriedKernel, trials: list[TriedKernel], dataset: Dataset, sample: Block) -> str:
    if len(trials) < 2:
        return "Scaling: none, so that sparse rows stay sparse."
    measure = "R^2" if dataset.classes is None else "accuracy"
    figures = ", ".join(f"{one.scaling or 'none'} {one.score:.3f}" for one in trials)
    heavy = len(heavy_tailed_columns(sample.X, np.asarray(dataset.passthrough, dtype=bool)))
    tails = f"; {heavy} column{'s have' if heavy > 1 else ' has'} heavy tails" if heavy else ""
    return f"Scaling: {chosen.scaling or 'none'} ({measure} on the sample: {figures}{tails})."


def _of_kernel(chosen: TriedKernel, usual: TriedKernel, trials: list[TriedKernel], dataset: Dataset) -> str:
    name = {"gaussian": "Gaussian", "laplacian": "Laplacian"}[chosen.kernel]
    tried = [one for one in trials if one.scaling == chosen.scaling]
    figures = ", ".join(f"{one.kernel} x {one.factor:g} {one.score:.3f}" for one in tried)
    why = "nothing tried is clearly better" if chosen is usual else "clearly better than the usual one"
    width = "the median distance" if chosen.factor == 1.0 else f"{chosen.factor:g} times the median distance"
    return f"Kernel: {name} of bandwidth {width}; {why} ({figures})."


def _without_target(dataset: Dataset, sample: Block) -> Advice:
    scaling: ScalingKind | None = None if dataset.source.is_sparse else "standard"
    if scaling and len(heavy_tailed_columns(sample.X, np.asarray(dataset.passthrough, dtype=bool))):
        scaling = "quantile"
    return Advice(
        RandomFeatures(n_features=1_000, scaling=scaling),
        {},
        (
            _of_rows(dataset, sample).split(";")[0] + ".",
            f"Learner: RandomFeatures, 1,000 columns, scaling {scaling or 'none'}: without a target nothing says "
            "which features matter.",
        ),
    )
