"""The usual time of a machine without settings, estimated from its effort, the size of the rows, and one block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dkl.machines.effort import EFFORTS, Shape
from dkl.protocols.block import Block

Law = Literal["lines", "steps", "waves"]

# Measured in 40 fits of 150 to 10,000,000 rows: operations a second of a matrix product on one core, and the cores, of
# the machine measured on; seconds over counted seconds, of trials and of the last fit; and seconds to read and map one
# number.
_REFERENCE, _CORES = 1e11, 2
_TRIALS, _LAST_FIT, _A_NUMBER = 1.4, 0.4, 1.6e-7
# With fewer rows than the first number trials end sooner; with more sampled rows than the second they take longer in
# proportion; with more rows than the third rounds of steps take no longer, since they use a sample. The factor is for
# the trials of categories.
_FULL_TRIALS, _LONGER_TRIALS, _MOST_OF_STEPS, _OF_CATEGORIES = 600, 12_000, 300_000, 1.5
# Usual passes of a fit, most of them over the sample.
_PASSES = {"fast": 90, "balanced": 110, "best": 200}
# Factor of the longest time over the usual one.
_AT_MOST = 3.0
# The block examined: its rows at most and at least, outputs and columns at most; the gain in R^2 above which more than
# a linear model is expected; and the share of this gain that thresholds of single columns must reach to be the law.
_LOOKED_AT, _TOO_FEW, _MOST_OUTPUTS, _MOST_COLUMNS, _GAIN, _OF_STEPS = 20_000, 1_000, 20, 200, 3e-3, 0.7
# With more columns than this, only three quarters of the rows and this many bins are examined: with 150 columns that
# takes a second.
_WIDE, _MOST_BINS = 60, 160


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
        The part of `seconds` that trials take, which depends on neither rows nor slots.
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
    effort: str, shape: Shape, *, sampled: int, has_codes: bool, law: Law, slots: int, flops_per_second: float
) -> UsualTime:
    """The usual time of a machine without settings on rows of this shape.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
    shape : Shape
        Of all rows, not of the sample.
    sampled : int
        Rows of the sample that candidates are tried on.
    has_codes : bool
        Whether the rows have categories.
    law : {"lines", "steps", "waves"}
        The law that the rows seem to follow: for "lines" trials end with the columns themselves; for "steps" the last
        fit uses a sample of the rows.
    slots : int
        Blocks that are computed at the same time.
    flops_per_second : float
        The speed of a matrix product on one thread.
    """
    allowed, numbers = EFFORTS[effort], shape.n_rows * shape.n_columns * shape.n_models
    trials = _TRIALS * 1e-9 * allowed.work * min(1.0, shape.n_rows / _FULL_TRIALS) * max(1.0, sampled / _LONGER_TRIALS)
    lines = numbers * _A_NUMBER * _CORES / slots
    waves = numbers * _LAST_FIT * 1e-9 * allowed.work_a_value * _CORES / slots
    # the square root, since the speed of memory differs less between machines than that of products: a machine with 1.5
    # times the operations a second took .9 of the time in seven fits
    pace = np.sqrt(_REFERENCE / flops_per_second) * (_OF_CATEGORIES if has_codes else 1.0)
    last_fit = {"lines": 0.0, "steps": waves * min(1.0, _MOST_OF_STEPS / max(shape.n_rows, 1)), "waves": waves}[law]
    usual, longest = (pace * (trials + lines + curves) for curves in (last_fit, waves))
    return UsualTime(usual, _AT_MOST * longest, _PASSES[effort], pace * trials)


def likely_law(block: Block, n_classes: int | None) -> Law:
    """The law that held-out rows of a block seem to follow: linear in the columns, steps of columns, or waves.

    Ridge regressions with a monotone curve of their scores are fitted to one half of the rows, and compared on the
    other. Of many columns, only the bins whose means explain most of the residuals of a linear model are regressed on;
    any curvature then counts as waves, the longest, since random waves of so many columns cannot show which law it is.
    The answer is waves, too, where nothing can be estimated: for few rows, sparse rows, many columns or classes, and
    rows of one class.
    """
    # only plans need these imports
    from sklearn.isotonic import IsotonicRegression
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.metrics import r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

    most = _LOOKED_AT if block.X.shape[1] <= _WIDE else _LOOKED_AT * 3 // 4
    rows = block.rows(np.arange(min(block.n_rows, most)))
    X, y = rows.X, rows.y
    if rows.n_rows < _TOO_FEW or not isinstance(X, np.ndarray) or X.shape[1] > _MOST_COLUMNS or y is None:
        return "waves"
    if n_classes is not None:
        y = np.asarray(y)[:, None] == np.unique(y)
    Y = np.asarray(y, dtype=np.float64).reshape(rows.n_rows, -1)
    if Y.shape[1] > _MOST_OUTPUTS or np.any(np.ptp(Y, axis=0) == 0.0):
        return "waves"
    is_finite = np.isfinite(X)
    means = np.sum(X, axis=0, where=is_finite, dtype=np.float64) / np.maximum(is_finite.sum(axis=0), 1)
    X = np.where(is_finite, X, means)
    X = X[:, np.ptp(X, axis=0) > 0.0]
    if X.shape[1] == 0:
        return "waves"
    half = rows.n_rows // 2
    bins = KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf", random_state=0).fit_transform(X)
    is_wide = X.shape[1] > _WIDE
    if is_wide:
        left = Y[:half] - Ridge().fit(X[:half], Y[:half]).predict(X[:half]).reshape(half, -1)
        # |1_b' left|^2 / |1_b|^2 is the squared error that the mean residual of bin b explains
        in_bin = np.asarray(bins[:half].sum(axis=0)).ravel()
        explains = np.sum((bins[:half].T @ left) ** 2, axis=1) / np.maximum(in_bin, 1.0)
        bins = bins[:, np.argsort(-explains, kind="stable")[:_MOST_BINS]]
    steps = bins.toarray()
    sampler = RBFSampler(gamma=0.5 / X.shape[1], n_components=200, random_state=0)
    waves = make_pipeline(StandardScaler(), sampler).fit_transform(X)

    def explained(*further: np.ndarray) -> float:
        """R^2 on the second half of a ridge regression on the columns and further ones."""
        columns = np.column_stack([X, *further])
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 4, 3))).fit(columns[:half], Y[:half])
        scores = model.predict(columns).reshape(Y.shape)
        # a monotone curve, so that a linear separation of classes does not count as curved
        fitted = [
            IsotonicRegression(out_of_bounds="clip").fit(score[:half], y[:half]).predict(score[half:])
            for score, y in zip(scores.T, Y.T, strict=True)
        ]
        return float(r2_score(Y[half:], np.column_stack(fitted)))

    by_lines = explained()
    if (gain := explained(steps, waves) - by_lines) <= _GAIN:
        return "lines"
    return "steps" if not is_wide and explained(steps) - by_lines > _OF_STEPS * gain else "waves"
