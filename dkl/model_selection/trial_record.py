"""The record of a search: the outcomes of its fits so far, in memory and in a checkpoint."""

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
    """The outcomes of all fits of a search, saved after every fit if there is a checkpoint.

    Parameters
    ----------
    n_folds : int
    weights : ndarray of shape (n_folds,)
        The weights of the folds; the score of a trial is the mean over all rows.
    checkpoint : Checkpoint or None
    fingerprint : str
        A digest of the data, the model, the space and the seed.
    outcomes : dict of (int, int) to Outcome
        The outcomes by trial and fold.
    """

    n_folds: int
    weights: np.ndarray
    checkpoint: Checkpoint | None = None
    fingerprint: str = ""
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)

    @classmethod
    def of(cls, folds: Sequence[ValidationFold], checkpoint: Checkpoint | None, fingerprint: str) -> Self:
        """The record of trials on these folds, with the outcomes in the checkpoint.

        Raises
        ------
        StoreError
            If the checkpoint belongs to another search.
        """
        record = cls(len(folds), np.array([fold.test.total_weight for fold in folds]), checkpoint, fingerprint)
        saved = None if checkpoint is None else checkpoint.load(fingerprint)
        for trial, fold, score, seconds, error in [] if saved is None else saved.values:
            record.outcomes[trial, fold] = Outcome(float("nan") if score is None else score, seconds, error)
        return record

    def keep(self, trial: int, fold: int, outcome: Outcome) -> None:
        """Record the outcome of one fit, and save all outcomes if there is a checkpoint."""
        self.outcomes[trial, fold] = outcome
        if self.checkpoint is None:
            return
        rows = [
            # JSON has no NaN, so that the score of a failed fit is null on disk.
            [*place, each.score if np.isfinite(each.score) else None, each.seconds, each.error]
            for place, each in self.outcomes.items()
        ]
        # All outcomes, which are few, are written each time, so that the file is replaced atomically.
        self.checkpoint.save({}, rows, fingerprint=self.fingerprint, rounds=len(rows))

    @property
    def done(self) -> set[int]:
        """The trials that have an outcome on all folds, or have failed."""
        return {trial for trial, _ in self.outcomes if not self.missing(trial)}

    def missing(self, trial: int) -> list[int]:
        """The folds on which a trial has not been evaluated; none if it has failed on any."""
        folds = range(self.n_folds)
        # A trial that failed on one fold has no mean score, so that its other folds are not fitted.
        if any(self.outcomes[trial, fold].error for fold in folds if (trial, fold) in self.outcomes):
            return []
        return [fold for fold in folds if (trial, fold) not in self.outcomes]

    def scores(self, trial: int) -> np.ndarray:
        """The scores of a trial by fold, (n_folds,); NaN where there is none, and everywhere if it failed on any."""
        if self.error(trial):
            return np.full(self.n_folds, np.nan)
        unknown = Outcome(float("nan"), 0.0)
        return np.array([self.outcomes.get((trial, fold), unknown).score for fold in range(self.n_folds)])

    def score(self, trial: int) -> float:
        """The mean score of a trial over the rows of all folds; NaN if it failed."""
        return float(mean_over_rows(self.scores(trial), self.weights))

    def seconds(self, trial: int) -> float:
        """The total time of all fits of a trial."""
        return sum(each.seconds for (number, _), each in self.outcomes.items() if number == trial)

    def error(self, trial: int) -> str:
        """The error of the first fold that failed; empty if none did."""
        failed = (self.outcomes[trial, fold].error for fold in range(self.n_folds) if (trial, fold) in self.outcomes)
        return next((error for error in failed if error), "")


def table(record: Record, parameters: Mapping[int, Mapping[str, Any]]) -> Any:
    """The trials as a data frame: score, deviation between folds, seconds, error, and a column for each parameter.

    Parameters
    ----------
    record : Record
    parameters : mapping of int to mapping
        The parameters of each evaluated trial, by its number.
    """
    import pandas as pd

    rows = [
        {
            "score": record.score(trial),
            "deviation": float(np.std(record.scores(trial))),
            "seconds": record.seconds(trial),
            "error": record.error(trial),
            # Objects, such as a family or an estimator, appear by their repr.
            **{
                name: value if isinstance(value, int | float | str | bool | None) else repr(value)
                for name, value in values.items()
            },
        }
        for trial, values in parameters.items()
    ]
    return pd.DataFrame(rows, index=pd.Index(list(parameters), name="trial"))
