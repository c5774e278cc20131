"""The record of a search: its trials, those scores that are known so far, and their place on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dkl.linear.judge import mean_over_rows
from dkl.model_selection.evaluation import Outcome
from dkl.model_selection.folds import ValidationFold
from dkl.passes.checkpoint import Checkpoint


@dataclass
class Record:
    """What is known of all trials; kept after every fit where there is a checkpoint.

    Parameters
    ----------
    n_folds : int
    weights : ndarray of shape (n_folds,)
        Of the folds: the score of a trial is the mean over all rows.
    checkpoint : Checkpoint or None
    fingerprint : str
        Of the data, the model, the space and the seed.
    outcomes : dict of (int, int) to Outcome
        By trial and fold.
    """

    n_folds: int
    weights: np.ndarray
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, folds: Sequence[ValidationFold], checkpoint: Checkpoint | None, fingerprint: str) -> Self:
        """The record of trials that are judged on `folds`, with what the checkpoint holds of them.

        Raises
        ------
        StoreError
            If the checkpoint belongs to another search.
        """
        record = cls(len(folds), np.array([fold.test.total_weight for fold in folds]), checkpoint, fingerprint)
        record.restore()
        return record

    def restore(self) -> None:
        """Take up what a search that was broken off has found.

        Raises
        ------
        StoreError
            If the checkpoint belongs to another search.
        """
        saved = None if self.checkpoint is None else self.checkpoint.load(self.fingerprint)
        for trial, fold, score, seconds, error in [] if saved is None else saved.values:
            self.outcomes[trial, fold] = Outcome(float("nan") if score is None else score, seconds, error)

    def keep(self, trial: int, fold: int, outcome: Outcome) -> None:
        """Note the outcome of one fit."""
        self.outcomes[trial, fold] = outcome
        if self.checkpoint is None:
            return
        rows = [
            # JSON has no NaN, so the score of a fit that failed is null on disk.
            [*place, known.score if np.isfinite(known.score) else None, known.seconds, known.error]
            for place, known in self.outcomes.items()
        ]
        # All outcomes are written each time: they are few, and a file that is replaced whole is never half new.
        self.checkpoint.save({}, rows, fingerprint=self.fingerprint, rounds=len(rows))

    @property
    def done(self) -> set[int]:
        """The trials that have been judged whole, or have failed."""
        return {trial for trial, _ in self.outcomes if not self.missing(trial)}

    def missing(self, trial: int) -> list[int]:
        """The folds on which a trial is still to be judged; none once it has failed on one."""
        folds = range(self.n_folds)
        # A trial that failed on one fold has no mean, so fitting it to the others would tell nothing.
        if any(self.outcomes[trial, fold].error for fold in folds if (trial, fold) in self.outcomes):
            return []
        return [fold for fold in folds if (trial, fold) not in self.outcomes]

    def scores(self, trial: int) -> np.ndarray:
        """By fold, (n_folds,); NaN where there is none, and for a trial that failed on any."""
        if self.error(trial):
            return np.full(self.n_folds, np.nan)
        unknown = Outcome(float("nan"), 0.0)
        return np.array([self.outcomes.get((trial, fold), unknown).score for fold in range(self.n_folds)])

    def score(self, trial: int) -> float:
        """The mean over the rows of all folds; NaN for a trial that failed."""
        return float(mean_over_rows(self.scores(trial), self.weights))

    def seconds(self, trial: int) -> float:
        """That all fits of a trial took."""
        return sum(known.seconds for (number, _), known in self.outcomes.items() if number == trial)

    def error(self, trial: int) -> str:
        """Of the first fold that failed; empty where none did."""
        failed = (self.outcomes[trial, fold].error for fold in range(self.n_folds) if (trial, fold) in self.outcomes)
        return next((error for error in failed if error), "")


def table(record: Record, parameters: Mapping[int, Mapping[str, Any]]) -> Any:
    """The trials as a data frame: score, deviation between the folds, seconds, error, and a column a parameter.

    Parameters
    ----------
    record : Record
    parameters : mapping of int to mapping
        Of each trial that was judged, by its number.
    """
    import pandas as pd

    rows = [
        {
            "score": record.score(trial),
            "deviation": float(np.std(record.scores(trial))),
            "seconds": record.seconds(trial),
            "error": record.error(trial),
            # An object (a family, a whole estimator) stands in the table by its name.
            **{
                name: value if isinstance(value, int | float | str | bool | None) else repr(value)
                for name, value in values.items()
            },
        }
        for trial, values in parameters.items()
    ]
    return pd.DataFrame(rows, index=pd.Index(list(parameters), name="trial"))
