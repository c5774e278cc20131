"""The usual time of a machine without settings, estimated from its effort, the size of the rows, and one block."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.linear.judge import ENOUGH_ROWS, LEAST_SEEN, gains
from dkl.machines.contest import EQUAL_LOSS
from dkl.machines.effort import EFFORTS, MOST_SPENT, SINGLE, Shape
from dkl.machines.settings import MOST_CLASSES
from dkl.methods.rounds.problem import RoundsProblem
from dkl.protocols.block import Block

# Seconds of a core for reading and mapping one number of the table for one model. Found from 18 fits of 1e5 to 1e7 rows
# on two cores, whose estimates are within a factor of 1.5 for all but two of 3 s, if the last fit takes all of the
# budget that may be reserved for it.
_A_NUMBER = 3.2e-7
# Seconds of a core for each counted second of trials: 1.2 to 1.4 on six tables of 750 to 36,000 rows.
_A_COUNTED_SECOND = 1.25
# Usual passes of a fit, most of them over the sample; between the means of fits with the least and the most effort.
_PASSES = 110
# Factor of the longest time over the usual one: the largest that was seen in 41 fits of tables is 1.8.
_AT_MOST = 3.0
# A block is examined if it has at most this many columns, by as many of their bins and as many waves: of 150 columns
# that takes a second.
_MOST_COLUMNS = 160


@dataclass(frozen=True)
class UsualTime:
    """The estimated time of choosing features and fitting on them.

    Parameters
    ----------
    seconds, at_most : float
        The usual and the longest time.
    passes : int
        The usual number of passes.
    fixed : float
        The part of `seconds` that trials take on one core. It depends on the rows only where there are fewer than 800,
        or where the sample is larger than 20,000; `at` leaves it as it is.
    """

    seconds: float
    at_most: float
    passes: int
    fixed: float

    def at(self, longer: float) -> UsualTime:
        """The estimate if everything but the trials takes `longer` times as long."""
        seconds = self.fixed + (self.seconds - self.fixed) * longer
        return replace(self, seconds=seconds, at_most=self.fixed + (self.at_most - self.fixed) * longer)


def usual_time(
    effort: str, shape: Shape, *, sampled: int, is_linear: bool, is_sparse: bool, slots: int, flops_per_second: float
) -> UsualTime:
    """The usual time of a machine without settings on rows of this shape: the seconds of the work that `effort` allows.

    Trials take the constant part of the budget on one core: less of it with fewer than 800 rows, and more, in
    proportion, with a sample of more than 20,000. The part that grows with the table is taken by trials as
    well, as far as the sample has all rows, and else by the last fit, which all slots share: on no more rows than
    rounds of steps use, and on the sample where the rows seem linear. Of sparse rows few kinds of features are tried,
    which leave most of it, and all rows are fitted.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
    shape : Shape
        Of all rows, not of the sample.
    sampled : int
        Rows of the sample that candidates are tried on.
    is_linear : bool
        Whether the rows seem to follow a linear law: the last fit is of the columns themselves then.
    is_sparse : bool
    slots : int
        Blocks that are computed at the same time.
    flops_per_second : float
        The speed of a matrix product on one thread.
    """
    budget, columns = EFFORTS[effort], shape.n_columns * shape.n_models
    # trials of fewer rows than judge end sooner, in proportion
    counted = 1e-9 * budget.work * min(1.0, shape.n_rows / ENOUGH_ROWS) * max(1.0, sampled / LEAST_SEEN)
    trials = _A_COUNTED_SECOND * counted
    most = shape.n_rows if is_sparse else sampled if is_linear else max(RoundsProblem.search_rows, sampled)
    fitted = min(shape.n_rows, most)
    # the share of the growing part that one core computes: a sample is one block
    alone = 0.0 if is_sparse else min(1.0, sampled / max(shape.n_rows, 1))
    cores = 1.0 / (alone + (1.0 - alone) / slots)
    usual, longest = (
        trials + columns * (MOST_SPENT * 1e-9 * budget.work_a_value * rows + _A_NUMBER * shape.n_rows) / cores
        for rows in (fitted, shape.n_rows)
    )
    # work is counted at 1 / SINGLE operations a nanosecond; the square root, since the speed of memory differs less
    # between machines than that of products: one with 1.5 times the operations a second took .9 of the time in 7 fits
    pace = np.sqrt(1e9 / SINGLE / flops_per_second)
    return UsualTime(pace * usual, _AT_MOST * pace * longest, _PASSES, pace * trials)


# several threads wait longer for each other than they compute in matrices of so few rows
@one_blas_thread()
def seems_linear(block: Block, n_classes: int | None) -> bool:
    """Whether held-out rows of a block are explained by a linear model as well as with steps and waves of the columns.

    Ridge regressions with a monotone curve of their scores are fitted to one half of the rows, and compared on the
    other. Of many columns, only the bins whose means explain most of the residuals of a linear model are regressed on.
    The answer is False, too, where nothing can be estimated: for few rows, sparse rows, many columns or classes, and
    rows of one class.
    """
    # only plans need these imports
    from sklearn.isotonic import IsotonicRegression
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.metrics import r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

    rows = block.rows(np.arange(min(block.n_rows, LEAST_SEEN)))
    X, y = rows.X, rows.y
    if rows.n_rows < ENOUGH_ROWS or not isinstance(X, np.ndarray) or X.shape[1] > _MOST_COLUMNS or y is None:
        return False
    if n_classes is not None:
        y = np.asarray(y)[:, None] == np.unique(y)
    Y = np.asarray(y, dtype=np.float64).reshape(rows.n_rows, -1)
    if Y.shape[1] > MOST_CLASSES or np.any(np.ptp(Y, axis=0) == 0.0):
        return False
    is_finite = np.isfinite(X)
    means = np.sum(X, axis=0, where=is_finite, dtype=np.float64) / np.maximum(is_finite.sum(axis=0), 1)
    X = np.where(is_finite, X, means)
    X = X[:, np.ptp(X, axis=0) > 0.0]
    if X.shape[1] == 0:
        return False
    half = rows.n_rows // 2
    with warnings.catch_warnings():
        # a column of mostly one value has fewer bins, which is right here, and no user asked for bins
        warnings.filterwarnings("ignore", "Bins whose width are too small", UserWarning)
        bins = KBinsDiscretizer(quantile_method="averaged_inverted_cdf", random_state=0).fit_transform(X)
    if bins.shape[1] > _MOST_COLUMNS:
        left = Y[:half] - Ridge().fit(X[:half], Y[:half]).predict(X[:half]).reshape(half, -1)
        # |1_b' left|^2 / |1_b|^2 is the squared error that the mean residual of bin b explains
        in_bin = np.asarray(bins[:half].sum(axis=0)).ravel()
        explains = np.sum((bins[:half].T @ left) ** 2, axis=1) / np.maximum(in_bin, 1.0)
        bins = bins[:, np.argsort(-explains, kind="stable")[:_MOST_COLUMNS]]
    steps = bins.toarray()
    sampler = RBFSampler(gamma=0.5 / X.shape[1], n_components=_MOST_COLUMNS, random_state=0)
    waves = make_pipeline(StandardScaler(), sampler).fit_transform(X)

    def explained(*further: np.ndarray) -> float:
        """R^2 on the second half of a ridge regression on the columns and further ones."""
        columns = np.column_stack([X, *further])
        model = make_pipeline(StandardScaler(), RidgeCV()).fit(columns[:half], Y[:half])
        scores = model.predict(columns).reshape(Y.shape)
        # a monotone curve, so that a linear separation of classes does not count as curved
        fitted = [
            IsotonicRegression(out_of_bounds="clip").fit(score[:half], y[:half]).predict(score[half:])
            for score, y in zip(scores.T, Y.T, strict=True)
        ]
        return float(r2_score(Y[half:], np.column_stack(fitted)))

    return not gains(1.0 - explained(steps, waves), 1.0 - explained(), EQUAL_LOSS)
