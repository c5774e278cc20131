"""Comparison: the result of `dkl.compare`, the scores and seconds of all learners at all sizes, with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from dkl.linear.judge import ranked, score_error
from dkl.model_selection.rivals import OUTSIDE
from dkl.plain_text import html_table, in_columns
from dkl.plots.figure import Axes
from dkl.plots.score_curves import ComparisonDisplay


@dataclass(frozen=True)
class Compared:
    """The score and cost of one learner at one size.

    Parameters
    ----------
    learner : str
    n_features : int or None
        The requested number of columns; None for an estimator that has no such number.
    score : float
        Accuracy, or R^2 for regression, on held-out rows; NaN if the fit failed.
    deviation : float
        Standard deviation of the score between the folds; 0 for a single fold.
    seconds : float
        Mean time of one fit, learning of the features included.
    error : str
        The error of a failed fit, else empty.
    """

    learner: str
    n_features: int | None
    score: float
    deviation: float
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        size = "" if self.n_features is None else f" with {self.n_features:,} features"
        return f"{self.learner}{size} ({self.score:.4f} in {self.seconds:.3g} s)"


@dataclass(frozen=True)
class Comparison:
    """The result of `dkl.compare`, which can be printed and plotted; `table` is a data frame.

    Parameters
    ----------
    rows : str
        A description of the rows.
    measure : {"accuracy", "R^2"}
    n_test : float
        The total weight of the scored rows.
    results : tuple of Compared
    message : str
        Why the comparison ended before all fits were done; empty if they all were.
    split : str
        How the scored rows were chosen.

    Raises
    ------
    RuntimeError
        If no result has a score.

    Examples
    --------
    >>> from dkl.model_selection.comparison import Compared, Comparison
    >>> plain, found = Compared("random", 400, 0.95, 0.0, 0.5), Compared("margin", 100, 0.951, 0.0, 3.0)
    >>> comparison = Comparison("1,000 rows", "accuracy", 200.0, (plain, found))
    >>> comparison.fewest_features.learner, comparison.fastest.learner
    ('margin', 'random')
    """

    rows: str
    measure: str
    n_test: float
    results: tuple[Compared, ...]
    message: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        if not any(np.isfinite(result.score) for result in self.results):
            raise RuntimeError(f"no learner has a score: all fits failed; the first error: {self.results[0].error}")

    @property
    def n_features(self) -> tuple[int, ...]:
        """The sizes, ascending."""
        return tuple(sorted({result.n_features for result in self.results if result.n_features is not None}))

    @property
    def learners(self) -> tuple[str, ...]:
        """The names of the learners, in the given order."""
        return tuple(dict.fromkeys(result.learner for result in self.results))

    @property
    def best(self) -> Compared:
        """The result with the largest score; among equal scores the fastest."""
        by_time = sorted(self.results, key=lambda result: result.seconds)
        return by_time[ranked([result.score for result in by_time])[0]]

    @property
    def standard_error(self) -> float:
        """The standard error of the best score, for randomly drawn rows; see `dkl.linear.judge.score_error`."""
        return self.error_of(self.best.score)

    def error_of(self, score: float) -> float:
        """The standard error of a score on the held-out rows."""
        return score_error(score, self.n_test, is_share=self.measure == "accuracy")

    @property
    def level(self) -> float:
        """The best score minus one standard error: results above it are considered as good as the best."""
        # The one-standard-error rule (Breiman et al. 1984): scores within it differ by no more than the sampling error
        # of the test rows, so that the cheapest learner is preferable.
        return self.best.score - self.standard_error

    def reaching(self, level: float | None = None) -> tuple[Compared, ...]:
        """The results with at least a given score.

        Parameters
        ----------
        level : float or None
            The least score; None is the attribute `level`, one standard error below the best.
        """
        # the score of a failed fit is NaN, which is never included
        least = self.level if level is None else level
        return tuple(result for result in self.results if result.score >= least)

    def seconds_to(self, learner: str, level: float | None = None) -> float:
        """The shortest time in which a learner reached a score; infinite if it did not.

        Parameters
        ----------
        learner : str
        level : float or None
            As in `reaching`.
        """
        reaching = [result.seconds for result in self.reaching(level) if result.learner == learner]
        return min(reaching, default=float("inf"))

    @property
    def fewest_features(self) -> Compared:
        """The result with the fewest features among those of `reaching`; among equal ones the fastest."""
        return min(self.reaching(), key=lambda result: (result.n_features or float("inf"), result.seconds))

    @property
    def fastest(self) -> Compared:
        """The fastest result among those of `reaching`."""
        return min(self.reaching(), key=lambda result: result.seconds)

    @property
    def advice(self) -> str:
        """Two sentences: the best result, and the smallest and the fastest within a standard error of it."""
        return (
            f"Best: {self.best}. Within a standard error ({self.standard_error:.2g}) of it, the fewest features: "
            f"{self.fewest_features}; the least time: {self.fastest}."
        )

    @property
    def table(self) -> Any:
        """All results as a data frame with one row for each."""
        import pandas as pd

        return pd.DataFrame([asdict(result) for result in self.results])

    def scores(self, learner: str) -> list[float]:
        """The scores of one learner by size; NaN where there is none."""
        return self._by_size(learner, "score")

    def display(self, *, title: str | None = None, baseline: str = "random") -> ComparisonDisplay:
        """The scores against the number of features, and against the seconds of the fit.

        Parameters
        ----------
        title : str or None
            None is the description of the rows.
        baseline : str
            The learner that is drawn as the reference line.
        """
        # A learner whose fits all failed has no line; its errors are printed below the table.
        drawn = [name for name in self.learners if np.isfinite(self.scores(name)).any()]
        alone = [result for result in self.results if result.n_features is None and np.isfinite(result.score)]
        panel = "score"
        spread = {name: spread for name in drawn if any(spread := self._by_size(name, "deviation"))}
        is_bars = len(self.n_features) <= 1
        if is_bars:
            # Bars show the standard errors of their scores instead of deviations between folds.
            spread = {name: [self.error_of(score) for score in self.scores(name)] for name in drawn}
        seconds = {name: self._by_size(name, "seconds") for name in drawn}
        return ComparisonDisplay(
            self.n_features,
            {panel: {name: self.scores(name) for name in drawn}},
            measure=f"{self.measure} on {self.n_test:,.0f} held-out rows" if is_bars else self.measure,
            baseline=baseline,
            title=self.rows if title is None else title,
            spread={panel: spread},
            references={panel: {result.learner: result.score for result in alone}} if alone else {},
            seconds={panel: seconds},
            reference_seconds={panel: {result.learner: result.seconds for result in alone}},
            reference_spread={panel: {result.learner: self.error_of(result.score) for result in alone}},
            own=tuple(result.learner for result in alone if result.learner not in OUTSIDE),
        )

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> ComparisonDisplay:
        """Draw `display`; see `dkl.plots.ComparisonDisplay`."""
        return self.display().plot(ax)

    def cells(self) -> list[list[str]]:
        """The printed table as strings: the heads, then a row for each learner, with its seconds to reach `level`."""
        alone = ["as it is"] if self._alone() else []
        # None is the column of estimators without a size.
        sizes = [*self.n_features, None] if alone else [*self.n_features]
        head = ["learner", *(f"{size:,}" for size in self.n_features), *alone, "seconds to the best"]
        return [head, *(self._row(learner, sizes) for learner in self.learners)]

    def __repr__(self) -> str:
        table = in_columns(self.cells(), left=1)
        return "\n".join([f"{self.measure} by number of features, {self.rows}", *table, *self._lines])

    def _repr_html_(self) -> str:
        return html_table(self.cells()) + "".join(f"<p>{escape(line)}</p>" for line in self._lines)

    @property
    def _lines(self) -> list[str]:
        """The lines below the printed table: advice, kind of held-out rows, message and errors."""
        held = [f"Held out: {self.split}."] if self.split else []
        return [self.advice, *held, *([self.message] if self.message else []), *self.errors]

    def _row(self, learner: str, sizes: Sequence[int | None]) -> list[str]:
        scores = [f"{score:.4f}" if np.isfinite(score) else "" for score in self._by_size(learner, "score", sizes)]
        # Infinite if the learner did not reach the level; the cell is then empty.
        seconds = self.seconds_to(learner)
        return [learner, *scores, f"{seconds:.3g}" if np.isfinite(seconds) else ""]

    @property
    def errors(self) -> list[str]:
        """A line for each failed fit."""
        return [f"{result.learner}: {result.error}" for result in self.results if result.error]

    def _alone(self) -> dict[str, float]:
        """The scores of estimators without a size."""
        return {result.learner: result.score for result in self.results if result.n_features is None}

    def _by_size(self, learner: str, name: str, sizes: Sequence[int | None] | None = None) -> list[float]:
        """An attribute of a learner's results by size; NaN for sizes at which it was not fitted."""
        by_size = {result.n_features: getattr(result, name) for result in self.results if result.learner == learner}
        return [by_size.get(size, float("nan")) for size in (self.n_features if sizes is None else sizes)]
