"""The usual time of a machine without settings, from its effort, the size of the rows, and one block of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dkl.machines.effort import EFFORTS, Shape
from dkl.protocols.block import Block

Law = Literal["lines", "steps", "waves"]

# Measured in 40 fits of 150 to 10,000,000 rows: operations a second of a matrix product on each core, and cores, of the
# machine; seconds of trials, and of the last fit, over their counted work; seconds to read and map one number.
_REFERENCE, _CORES = 1e11, 2
_TRIALS, _LAST_FIT, _A_NUMBER = 1.4, 0.4, 1.6e-7
# Rows below which trials end sooner, rows of the sample above which they take longer in proportion, rows above which
# rounds of steps take no longer, since they are played on a sample, and the factor of the trials of categories.
_FULL_TRIALS, _LONGER_TRIALS, _MOST_OF_STEPS, _OF_CATEGORIES = 600, 12_000, 300_000, 1.5
# Usual passes, most of them over the sample.
_PASSES = {"fast": 90, "balanced": 110, "best": 200}
# The longest time over the usual one.
_AT_MOST = 3.0
# The block that is looked at: rows at most and at least, outputs and columns at most, the gain in R^2 above which more
# than straight lines is expected, and the share of it that thresholds of single columns reach where they are the law.
_LOOKED_AT, _TOO_FEW, _MOST_OUTPUTS, _MOST_COLUMNS, _GAIN, _OF_STEPS = 20_000, 1_000, 20, 200, 3e-3, 0.7
# Columns above which the look takes three quarters of the rows and regresses on a part of the bins alone, and how
# many: of 150 columns such a look takes a second.
_WIDE, _MOST_BINS = 60, 160


@dataclass(frozen=True)
class UsualTime:
    """The time of choosing features and fitting on them.

    Parameters
    ----------
    seconds, at_most : float
        Usually, and at most.
    passes : int
        Usually.
    fixed : float
        The part of `seconds` that trials take, whatever the number of rows and slots.
    """

    seconds: float
    at_most: float
    passes: int
    fixed: float

    def at(self, longer: float) -> UsualTime:
        """The same where everything but the trials takes longer by a factor."""
        seconds = self.fixed + (self.seconds - self.fixed) * longer
        return replace(self, seconds=seconds, at_most=self.fixed + (self.at_most - self.fixed) * longer)


def usual_time(
    effort: str, shape: Shape, *, sampled: int, has_codes: bool, law: Law, slots: int, flops_per_second: float
) -> UsualTime:
    """The usual time of a machine without settings.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
    shape : Shape
        Of all rows.
    sampled : int
        Rows that candidates are tried on.
    has_codes : bool
        Whether there are categories.
    law : {"lines", "steps", "waves"}
        What the rows seem to follow: of straight lines the trials end with the columns themselves, and of thresholds
        the last fit searches a sample of the rows.
    slots : int
        Blocks that are computed on at once.
    flops_per_second : float
        Of a product of matrices, on one thread.
    """
    allowed, numbers = EFFORTS[effort], shape.n_rows * shape.n_columns * shape.n_models
    trials = _TRIALS * 1e-9 * allowed.work * min(1.0, shape.n_rows / _FULL_TRIALS) * max(1.0, sampled / _LONGER_TRIALS)
    lines = numbers * _A_NUMBER * _CORES / slots
    waves = numbers * _LAST_FIT * 1e-9 * allowed.work_a_value * _CORES / slots
    # the square root, since the speed of memory differs less from machine to machine than that of products: one with
    # 1.5 times the operations a second took .9 of the time in seven fits
    pace = np.sqrt(_REFERENCE / flops_per_second) * (_OF_CATEGORIES if has_codes else 1.0)
    last_fit = {"lines": 0.0, "steps": waves * min(1.0, _MOST_OF_STEPS / max(shape.n_rows, 1)), "waves": waves}[law]
    usual, longest = (pace * (trials + lines + curves) for curves in (last_fit, waves))
    return UsualTime(usual, _AT_MOST * longest, _PASSES[effort], pace * trials)


def likely_law(block: Block, n_classes: int | None) -> Law:
    """Whether waves or thresholds predict held-out rows of a block better than the columns themselves do, and which.

    Ridge regressions are fitted to one half of the rows, each with a rising curve of its scores, and compared on the
    other. Of more bins than are regressed on, those stay whose means explain most of what straight lines leave, and
    what is curved is expected to take the longest: random waves of so many columns do not show which law it is. Waves
    where nothing can be told: for few rows, sparse rows, many columns or classes, and rows of one class.
    """
    # a plan needs them, and no fit
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
    known = np.isfinite(X)
    means = np.sum(X, axis=0, where=known, dtype=np.float64) / np.maximum(known.sum(axis=0), 1)
    X = np.where(known, X, means)
    X = X[:, np.ptp(X, axis=0) > 0.0]
    if X.shape[1] == 0:
        return "waves"
    half = rows.n_rows // 2
    bins = KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf", random_state=0).fit_transform(X)
    is_wide = X.shape[1] > _WIDE
    if is_wide:
        left = Y[:half] - Ridge().fit(X[:half], Y[:half]).predict(X[:half]).reshape(half, -1)
        # |1_b' left|^2 / |1_b|^2: squares that the mean of the rows of a bin explains
        in_bin = np.asarray(bins[:half].sum(axis=0)).ravel()
        explains = np.sum((bins[:half].T @ left) ** 2, axis=1) / np.maximum(in_bin, 1.0)
        bins = bins[:, np.argsort(-explains, kind="stable")[:_MOST_BINS]]
    steps = bins.toarray()
    sampler = RBFSampler(gamma=0.5 / X.shape[1], n_components=200, random_state=0)
    waves = make_pipeline(StandardScaler(), sampler).fit_transform(X)

    def explained(*further: np.ndarray) -> float:
        """R^2 on the second half, of the columns and further ones."""
        columns = np.column_stack([X, *further])
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 4, 3))).fit(columns[:half], Y[:half])
        scores = model.predict(columns).reshape(Y.shape)
        # a rising curve, so that a line which separates classes well is not called curved
        fitted = [
            IsotonicRegression(out_of_bounds="clip").fit(score[:half], y[:half]).predict(score[half:])
            for score, y in zip(scores.T, Y.T, strict=True)
        ]
        return float(r2_score(Y[half:], np.column_stack(fitted)))

    by_lines = explained()
    if (gain := explained(steps, waves) - by_lines) <= _GAIN:
        return "lines"
    return "steps" if not is_wide and explained(steps) - by_lines > _OF_STEPS * gain else "waves"
