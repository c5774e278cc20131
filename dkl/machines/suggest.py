"""Advice on the scaling, kernel, bandwidth and number of waves, from one pass and a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.spatial import distance

from dkl.data.dataset import Dataset
from dkl.data.together.messages import kind_of_split
from dkl.features.families import Coordinates, Gaussian, Laplacian
from dkl.features.scaling import Scaler, ScalingKind
from dkl.kernels.moments import Moments, moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import Crew, one_blas_thread
from dkl.linear.fitting import Run
from dkl.linear.judge import is_clear
from dkl.methods.base import FeatureLearner
from dkl.methods.preparation.bandwidth import Metric, median_distance
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.preparation.scalers import quantile_scaler, scaler_from_moments
from dkl.passes.loop import PassResult
from dkl.protocols.block import Block
from dkl.protocols.driver import BETWEEN_PASSES
from dkl.protocols.records import RowSample
from dkl.registry import learner_entry
from dkl.solvers.leave_one_out import left_out_ridge

# Sampled rows, each predicted by a kernel machine fitted to all others: 0.3 s for one kernel on one core.
JUDGED_ROWS = 1_000
# Penalties of kernel ridge regression on them, for kernels whose diagonal is 1 and targets of variance 1; of these the
# one with the least leave-one-out error counts.
PENALTIES = np.logspace(-3, 1, 5)
# Factor on the number of features in a larger variant, and on the bandwidth of a wider kernel; its inverse for a
# narrower one.
GROWTH = 2.5
# Bandwidths tried, in units of the median distance between the scaled rows.
BANDWIDTHS = (0.35, 1.0, GROWTH)
# Fewest and most features that are advised: a machine on the sampled rows needs no more than there are of these.
_FEWEST, MOST_ADVISED_FEATURES = 100, JUDGED_ROWS
# A search over directions gains little with more sparse columns than this.
_WIDE = 5_000


# The two scalings that are compared of dense rows, and of sparse rows without negative numbers: neither of the latter
# makes something other than 0 of a zero.
DENSE_SCALINGS: tuple[ScalingKind | None, ...] = ("standard", "quantile")
SPARSE_SCALINGS: tuple[ScalingKind | None, ...] = (None, "counts")


class RowsAlikeError(ValueError):
    """All sampled rows are equal, so that no kernel can distinguish them."""


@dataclass(frozen=True)
class TriedKernel:
    """The leave-one-out result of one kernel on sampled rows.

    Parameters
    ----------
    scaling : {None, "standard", "quantile", "counts"}
    kernel : {"gaussian", "laplacian"}
    factor : float
        The bandwidth over the median distance between scaled rows.
    sigma : float
        The bandwidth.
    errors : ndarray of shape (m,)
        The squared error of each row, predicted from all others, at the best penalty.
    degrees_of_freedom : float
        Effective degrees of freedom at the largest penalty that is not clearly worse than the best.
    """

    scaling: ScalingKind | None
    kernel: str
    factor: float
    sigma: float
    errors: np.ndarray
    degrees_of_freedom: float

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    def beats(self, other: TriedKernel) -> bool:
        """Whether this kernel's errors are clearly smaller on the same rows."""
        return is_clear(other.errors - self.errors)


@dataclass(frozen=True)
class Advice:
    """Features that suit the rows, from which the candidates of a choice are made.

    Parameters
    ----------
    features : FeatureLearner
        Searched waves, or the columns themselves; not fitted.
    reasons : tuple of str
        Sentences on the rows, and on the scaling and the kernel of the waves.
    scalings : tuple of (str or None), of length 0 or 2
        The two scalings between which held-out rows decide; empty where scaling does not change these rows.
    """

    features: FeatureLearner
    reasons: tuple[str, ...] = ()
    scalings: tuple[ScalingKind | None, ...] = DENSE_SCALINGS


def columns_themselves(scaling: ScalingKind | None = None) -> FeatureLearner:
    """The learner whose features are all columns, scaled: a ball of radius 0 gives them the same weight."""
    learner_class = learner_entry("aligned").learner_class
    return learner_class(Coordinates(), n_candidates=None, n_features=None, rho=0.0, scaling=scaling)


def advise(dataset: Dataset, run: Run, seed: int, judged_rows: int) -> Advice:
    """Advice from kernel machines on sampled rows, which one pass reads.

    With 0 judged rows no kernel machine is fitted, and the advice is all columns themselves.

    Raises
    ------
    RowsAlikeError
        If all rows are equal.
    """
    # six matrices of all pairs of rows, as measured, for each of at most three kernels side by side
    run.holds({BETWEEN_PASSES: 3 * 6 * 8 * min(judged_rows, dataset.n_rows) ** 2})
    sample, scalers, moments = _sample_and_moments(dataset, run, seed)
    if judged_rows == 0:
        if np.all(moments.low == moments.high):
            raise RowsAlikeError(f"all {dataset.n_rows:,} rows are equal: there is nothing to predict from")
        return Advice(columns_themselves(), (_rows_sentence(dataset),), _scalings(dataset, scalers))
    with one_blas_thread():
        trials = _Judge(sample, scalers, dataset, judged_rows).trials()
    return replace(_advice_from_trials(dataset, sample, trials, judged_rows), scalings=_scalings(dataset, scalers))


_Scalers = dict[ScalingKind | None, Scaler | None]


def _sample_and_moments(dataset: Dataset, run: Run, seed: int) -> tuple[Block, _Scalers, Moments]:
    """A sample of the rows, the scalers to compare, and the moments of all rows."""
    problem = preparation_problem(dataset, Gaussian(), "quantile", seed)
    moments_of_all = moments_record(dataset.n_columns, is_sparse=problem.is_sparse)
    records = RowSample("rows to judge on", problem.sample_rows, seed), moments_of_all

    def found(passed: PassResult) -> tuple[Block, _Scalers, Moments]:
        sample, sums = passed.results
        moments, passthrough = moments_of(sums), problem.passthrough
        if problem.is_sparse:
            scalers: _Scalers = {None: None}
            if not np.all(passthrough) and np.all((moments.low >= 0.0) | passthrough):
                scalers["counts"] = scaler_from_moments("counts", moments, passthrough)
            return sample, scalers, moments
        standard = scaler_from_moments("standard", moments, passthrough)
        quantile = quantile_scaler(sample.X, passthrough, learned=problem.learned)
        return sample, {"standard": standard, "quantile": quantile, None: None}, moments

    # no other pass of a plan depends on the rows
    return run.read(dataset.source, records, found, None)


def _scalings(dataset: Dataset, scalers: _Scalers) -> tuple[ScalingKind | None, ...]:
    """The two scalings that held-out rows may decide between."""
    # columns of zeros and ones by making, such as one-hot columns, are the same in any scaling
    if len(scalers) < 2 or np.all(dataset.passthrough):
        return ()
    return SPARSE_SCALINGS if dataset.source.is_sparse else DENSE_SCALINGS


class _Judge:
    """Compares kernels on sampled rows by leave-one-out errors."""

    def __init__(self, sample: Block, scalers: _Scalers, dataset: Dataset, judged_rows: int) -> None:
        self._rows = sample.X[:judged_rows]
        self._scalers = scalers
        y = np.asarray(sample.y)[:judged_rows]
        n_classes = dataset.schema.n_classes
        # classes become indicator columns; both kinds of targets are centred
        outputs = y[:, None] == np.arange(n_classes) if n_classes else y.reshape(len(y), -1).astype(np.float64)
        deviation = np.ones(n_classes) if n_classes else outputs.std(axis=0)
        self._targets = (outputs - outputs.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0)

    def trials(self) -> list[TriedKernel]:
        """Try the usual kernel first, then its other scalings, then other bandwidths and kernels in the better one."""
        in_scalings = self._tried([("gaussian", 1.0, scaling) for scaling in self._scalers])
        if not in_scalings:
            raise RowsAlikeError(
                f"the {self._rows.shape[0]:,} sampled rows are all equal: there is nothing to predict from; check the "
                "columns"
            )
        usual, *rescaled = in_scalings
        scaling = _clearly_better(in_scalings, usual).scaling
        others = [("gaussian", factor, scaling) for factor in BANDWIDTHS if factor != 1.0]
        return [usual, *rescaled, *self._tried([*others, ("laplacian", 1.0, scaling)])]

    def _tried(self, kernels: list[tuple[str, float, ScalingKind | None]]) -> list[TriedKernel]:
        """The trials of kernels, each with a bandwidth factor and a scaling, that are defined for the rows."""
        return [trial for trial in Crew().map(lambda kernel: self._trial(*kernel), kernels) if trial is not None]

    def _trial(self, kernel: str, factor: float, scaling: ScalingKind | None) -> TriedKernel | None:
        """The trial of one kernel; None if it is not defined for the rows."""
        if kernel == "laplacian" and sparse.issparse(self._rows):
            # distances in the 1-norm would need dense rows
            return None
        matrix, sigma = _kernel_matrix(scale_rows(self._rows, self._scalers[scaling], "float64"), kernel, factor)
        return None if matrix is None else self._leave_one_out(scaling, kernel, factor, matrix, sigma)

    def _leave_one_out(
        self, scaling: ScalingKind | None, kernel: str, factor: float, matrix: np.ndarray, sigma: float
    ) -> TriedKernel:
        """Leave-one-out kernel ridge regression, at the best of the penalties."""
        # adding a constant to the kernel gives the machine an intercept
        ridge = left_out_ridge(matrix + 1.0, self._targets, PENALTIES)
        errors = ((ridge.predictions - self._targets) ** 2).sum(axis=2)
        best = int(np.argmin(errors.mean(axis=1)))
        # the features needed are estimated at the largest penalty that is not clearly worse
        enough = max(at for at in range(len(errors)) if not is_clear(errors[at] - errors[best]))
        return TriedKernel(scaling, kernel, factor, sigma, errors[best], float(ridge.degrees_of_freedom[enough]))


def _kernel_matrix(rows: np.ndarray | sparse.csr_array, kernel: str, factor: float) -> tuple[np.ndarray | None, float]:
    """The kernel matrix of sampled rows, with a diagonal of mean 1, and its bandwidth; None if all rows are equal."""
    metric: Metric = "cityblock" if kernel == "laplacian" else "euclidean"
    try:
        sigma = factor * median_distance(rows, metric=metric)
    except ValueError:
        return None, 1.0
    if isinstance(rows, np.ndarray):
        away = distance.squareform(distance.pdist(rows, "cityblock" if kernel == "laplacian" else "sqeuclidean"))
    else:
        products = (rows @ rows.T).toarray()
        # |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, which needs no dense rows; rounding may take it below 0
        norms = np.diag(products)
        away = np.maximum(norms[:, None] + norms - 2.0 * products, 0.0)
    return np.exp(-away / (2.0 * sigma**2) if kernel == "gaussian" else -away / sigma), sigma


def _clearly_better(trials: list[TriedKernel], usual: TriedKernel) -> TriedKernel:
    """The trial with the least error, if it clearly beats the usual one, else the usual one."""
    best = min(trials, key=lambda trial: trial.error)
    return best if best.beats(usual) else usual


def _advice_from_trials(dataset: Dataset, sample: Block, trials: list[TriedKernel], judged_rows: int) -> Advice:
    """The advice that follows from the trials: the usual kernel and scaling unless others are clearly better.

    The first trial must be the usual kernel in the usual scaling.
    """
    rescaled = [trial for trial in trials if trial.kernel == "gaussian" and trial.factor == 1.0]
    kernel = _clearly_better(trials, _clearly_better(rescaled, trials[0]))
    # four columns for each degree of freedom, at most half as many as rows
    wanted = max(min(4.0 * kernel.degrees_of_freedom, dataset.total_weight / 2.0), 1.0)
    # a round number, of one digit and zeros, since the loss changes little near the best number
    size = int(np.clip(float(f"{wanted:.0e}"), _FEWEST, MOST_ADVISED_FEATURES))
    features: FeatureLearner
    if sparse.issparse(sample.X) and dataset.n_columns > _WIDE:
        features = learner_entry("aligned").learner_class(
            Coordinates(), n_candidates=None, n_features=MOST_ADVISED_FEATURES, scaling=kernel.scaling
        )
    else:
        law = Laplacian if kernel.kernel == "laplacian" else Gaussian
        # the median distance over all rows is more accurate than over a sample, so only other factors pin a bandwidth
        family = law() if kernel.factor == 1.0 else law(sigma=float(f"{kernel.sigma:.4g}"))
        features = learner_entry("margin").learner_class(family, n_features=size, scaling=kernel.scaling)
    width = "the median distance" if kernel.factor == 1.0 else f"{kernel.factor:g} times the median distance"
    waves = (
        f"Scaling: {kernel.scaling or 'none'}, with a {kernel.kernel.capitalize()} kernel of bandwidth {width}; "
        f"nothing else predicts {min(judged_rows, sample.n_rows):,} rows drawn at random clearly better, each from the "
        "others."
    )
    return Advice(features, (_rows_sentence(dataset), waves))


def _rows_sentence(dataset: Dataset) -> str:
    """A sentence on the number and kind of the rows, and on how they are held out."""
    target = f"of {dataset.schema.n_classes} classes" if dataset.classes is not None else "with numbers to predict"
    kind = "sparse " if dataset.source.is_sparse else ""
    return (
        f"Rows: {dataset.n_rows:,} {target} with {dataset.n_columns:,} {kind}columns; held-out rows are "
        f"{kind_of_split(dataset)}."
    )
