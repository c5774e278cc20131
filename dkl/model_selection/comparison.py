"""Comparison: the scores of all learners at all sizes, what they cost, and which one to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dkl.linear.judge import ranked, score_error
from dkl.model_selection.rivals import OUTSIDE
from dkl.plots.score_curves import ComparisonDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Compared:
    """One learner at one size.

    Parameters
    ----------
    learner : str
    n_features : int or None
        Columns that were asked for; None for an estimator that has no such number.
    score : float
        Accuracy, or R^2 for numbers, on rows that were not fitted; NaN where the fit failed.
    deviation : float
        Of the score between the folds; 0 for a single one.
    seconds : float
        Of learning and fitting, of one fold.
    error : str
        Empty where nothing failed.
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
    """What `dkl.compare` found; print it, plot it, or take `table`.

    Parameters
    ----------
    rows : str
        A line about the rows.
    measure : {"accuracy", "R^2"}
    n_test : float
        The weight of the rows that scores are of.
    results : tuple of Compared
    message : str
        Why it was ended before all fits were done; empty where it was not.
    split : str
        By what the rows that are scored were chosen.

    Raises
    ------
    RuntimeError
        If none has a score.

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
            raise RuntimeError(f"no learner has a score: all fits failed; the first said: {self.results[0].error}")

    @property
    def n_features(self) -> tuple[int, ...]:
        """The sizes, ascending."""
        return tuple(sorted({result.n_features for result in self.results if result.n_features is not None}))

    @property
    def learners(self) -> tuple[str, ...]:
        """Their names, in the order in which they were given."""
        return tuple(dict.fromkeys(result.learner for result in self.results))

    @property
    def best(self) -> Compared:
        """The result with the largest score; of equal ones the fastest."""
        by_time = sorted(self.results, key=lambda result: result.seconds)
        return by_time[ranked([result.score for result in by_time])[0]]

    @property
    def standard_error(self) -> float:
        """Of the best score, as a mean over so many rows drawn at random; see `dkl.linear.judge.score_error`."""
        return self.error_of(self.best.score)

    def error_of(self, score: float) -> float:
        """The standard error of a score on the rows that were held out."""
        return score_error(score, self.n_test, is_share=self.measure == "accuracy")

    @property
    def level(self) -> float:
        """What is as good as the best: its score less one standard error."""
        # The rule of one standard error (Breiman et al. 1984): among scores that the noise of the test rows cannot tell
        # apart, the cheapest learner is the one to take.
        return self.best.score - self.standard_error

    def reaching(self, level: float | None = None) -> tuple[Compared, ...]:
        """The results that reach a score.

        Parameters
        ----------
        level : float or None
            None is `level`, within a standard error of the best.
        """
        # A failed fit has the score NaN, which reaches nothing.
        least = self.level if level is None else level
        return tuple(result for result in self.results if result.score >= least)

    def seconds_to(self, learner: str, level: float | None = None) -> float:
        """The least seconds in which a learner reached a score; infinite where it did not.

        Parameters
        ----------
        learner : str
        level : float or None
            As of `reaching`.
        """
        reaching = [result.seconds for result in self.reaching(level) if result.learner == learner]
        return min(reaching, default=float("inf"))

    @property
    def fewest_features(self) -> Compared:
        """Of those as good as the best the one with the fewest features; of equal ones the fastest."""
        return min(self.reaching(), key=lambda result: (result.n_features or float("inf"), result.seconds))

    @property
    def fastest(self) -> Compared:
        """Of those as good as the best the one that was fitted in the least time."""
        return min(self.reaching(), key=lambda result: result.seconds)

    @property
    def advice(self) -> str:
        """Which learner to take, in two sentences."""
        return (
            f"Best: {self.best}. Within a standard error ({self.standard_error:.2g}) of it, the fewest features: "
            f"{self.fewest_features}; the least time: {self.fastest}."
        )

    @property
    def table(self) -> Any:
        """All results as a data frame, one row each."""
        import pandas as pd

        return pd.DataFrame([asdict(result) for result in self.results])

    def scores(self, learner: str) -> list[float]:
        """Of one learner, one a size; NaN where there is none."""
        return self._by_size(learner, "score")

    def display(self, *, title: str | None = None, baseline: str = "random") -> ComparisonDisplay:
        """The scores against the number of features, and against the seconds of the fit.

        Parameters
        ----------
        title : str or None
            None is the line about the rows.
        baseline : str
            The learner that is drawn as the line to beat.
        """
        # A learner whose fits all failed has no line; its errors are said below the table.
        drawn = [name for name in self.learners if np.isfinite(self.scores(name)).any()]
        alone = [result for result in self.results if result.n_features is None and np.isfinite(result.score)]
        panel = "score"
        spread = {name: spread for name in drawn if any(spread := self._by_size(name, "deviation"))}
        is_bars = len(self.n_features) <= 1
        if is_bars:
            # Bars have the standard error of their scores, which tells whether they differ.
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
        """A table as texts: the heads, then a row a learner, with the seconds to a score as good as the best."""
        alone = ["as it is"] if self._alone() else []
        # None stands for the column of estimators without a size.
        sizes = [*self.n_features, None] if alone else [*self.n_features]
        head = ["learner", *(f"{size:,}" for size in self.n_features), *alone, "seconds to the best"]
        return [head, *(self._row(learner, sizes) for learner in self.learners)]

    def __repr__(self) -> str:
        head, *rows = self.cells()
        text = _frame(head, rows).to_string(index=False)
        return "\n".join([f"{self.measure} by number of features, {self.rows}", text, *self._lines])

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        lines = "".join(f"<p>{escape(line)}</p>" for line in self._lines)
        return _frame(head, rows).to_html(index=False, border=0) + lines

    @property
    def _lines(self) -> list[str]:
        """What is said below the table."""
        held = [f"Held out: {self.split}."] if self.split else []
        return [self.advice, *held, *([self.message] if self.message else []), *self.errors]

    def _row(self, learner: str, sizes: Sequence[int | None]) -> list[str]:
        scores = [f"{score:.4f}" if np.isfinite(score) else "" for score in self._by_size(learner, "score", sizes)]
        # Infinite where the learner never got there: the cell stays empty.
        seconds = self.seconds_to(learner)
        return [learner, *scores, f"{seconds:.3g}" if np.isfinite(seconds) else ""]

    @property
    def errors(self) -> list[str]:
        """Of the fits that failed, one line each."""
        return [f"{result.learner}: {result.error}" for result in self.results if result.error]

    def _alone(self) -> dict[str, float]:
        """The scores of estimators without a size."""
        return {result.learner: result.score for result in self.results if result.n_features is None}

    def _by_size(self, learner: str, name: str, sizes: Sequence[int | None] | None = None) -> list[float]:
        """One attribute of a learner's results, a number a size; NaN where it was not fitted at that size."""
        known = {result.n_features: getattr(result, name) for result in self.results if result.learner == learner}
        return [known.get(size, float("nan")) for size in (self.n_features if sizes is None else sizes)]


def _frame(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """The texts as a data frame, which lays them out for a terminal and for a notebook."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(head))
