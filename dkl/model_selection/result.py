"""Tuning: what a search has found, as a person and a notebook see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dkl.linear.judge import ranked
from dkl.model_selection.space import Space
from dkl.model_selection.trial_record import Record, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class Tuning:
    """The result of `dkl.tune`.

    Attributes
    ----------
    best_params_ : dict
        Of the trial with the largest score; of equal ones the first.
    best_score_ : float
        Its mean over the rows of all folds.
    best_index_ : int
        Its number.
    best_model_ : estimator or None
        Fitted to all rows with them; None with ``refit=False``.
    trials : pandas.DataFrame
        One row a trial: score, deviation between the folds, seconds, error (empty where none), the parameters.
    fold_scores_ : ndarray of shape (n_trials, n_folds)
    space : Space
    message : str
        How the search ended.
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    trials: Any
    fold_scores_: np.ndarray
    space: Space
    message: str
    best_model_: Any = field(default=None)

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Any:
        """Draw the trials: the score of each, and against every parameter; see `dkl.plots.TrialsDisplay`."""
        from dkl.plots.trials import TrialsDisplay

        return TrialsDisplay.from_tuning(self).plot(ax)

    def __repr__(self) -> str:
        shown = {
            name: f"{value:.6g}" if isinstance(value, float) else repr(value)
            for name, value in self.best_params_.items()
        }
        best = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"Tuning: {self.message}; best score {self.best_score_:.6g} in trial {self.best_index_} with {best}"

    def _repr_html_(self) -> str:
        # A notebook shows the best trials first, and the failed ones, whose score is NaN, at the end.
        ordered = self.trials.sort_values("score", ascending=False, kind="stable", na_position="last")
        return f"<p>{escape(repr(self))}</p>{ordered.to_html(max_rows=12, float_format='{:.5g}'.format)}"


def tuning_of(
    record: Record,
    parameters: Mapping[int, Mapping[str, Any]],
    space: Space,
    *,
    split: str = "single rows, drawn at random",
    resource: str | None = None,
    ended: str = "",
) -> Tuning:
    """The result of a search.

    Parameters
    ----------
    record : Record
    parameters : mapping of int to mapping
        Of all trials that were begun, by number.
    space : Space
    split : str
        By what rows were held out.
    resource : str or None
        The parameter that halving gave more and more of: the best trial is one of those with most of it.
    ended : str
        Why the search was ended early; empty where it was not.

    Raises
    ------
    RuntimeError
        If no trial has a score.
    """
    done = {trial: dict(values) for trial, values in parameters.items() if not record.missing(trial)}
    scored = {trial: score for trial in done if np.isfinite(score := record.score(trial))}
    if not scored:
        # The first error is usually that of all of them.
        errors = [error for trial in done if (error := record.error(trial))]
        cause = f"all of {len(done)} failed; the first said: {errors[0]}" if errors else "none ended before the timeout"
        raise RuntimeError(f"no trial has a score: {cause}")
    # Scores with different amounts of a resource (epochs) do not compare: the best trial is one of the highest rung
    # that any trial has reached.
    most = None if resource is None else max(done[trial][resource] for trial in scored)
    final = [trial for trial in scored if resource is None or done[trial][resource] == most]
    # Of equal scores the earlier trial is taken, so that the result does not depend on the order of a dict.
    final.sort()
    best = final[ranked([scored[trial] for trial in final])[0]]
    failed = len(done) - len(scored)
    message = f"{len(done)} trials of {record.n_folds} fold{'s' if record.n_folds > 1 else ''} of {split}"
    return Tuning(
        best_params_=done[best],
        best_score_=scored[best],
        best_index_=best,
        trials=table(record, done),
        fold_scores_=np.array([record.scores(trial) for trial in done]),
        space=space,
        message=(f"{ended} after " if ended else "") + message + (f", {failed} failed" if failed else ""),
    )
