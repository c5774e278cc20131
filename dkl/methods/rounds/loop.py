"""The loop of rounds that add features to a model.

In each round a pass over all rows evaluates the model and the proposed features; the model is judged on held-out rows,
the best of the proposed features join it, its coefficients are fitted again, and the next features are proposed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.linear.judge import last_gain, rounds_without_gain
from dkl.methods.frequency_search.searched_rows import SearchedRows
from dkl.protocols.records import BlockSum, Record, RowSample

P = TypeVar("P")
# A frozen dataclass `WithHistory`, with `phase` (the purpose of the next pass) and `message` (why the rounds ended).
S = TypeVar("S", bound=Any)

# A round gains if it lowers the held-out loss by more than this share of the lowest one before it.
LEAST_GAIN = 1e-4
# The step between the seeds of two rounds; another one than between dictionaries, whose seeds would meet otherwise.
BETWEEN_ROUNDS = 7_919


class WithHistory:
    """A state whose `history`, of shape (rounds, len(names)), has a line for each round, with the columns `names`."""

    names: ClassVar[tuple[str, ...]]
    history: np.ndarray

    def series(self, name: str) -> np.ndarray:
        """A column of the history, one number for each round."""
        return self.history[:, self.names.index(name)]

    def lines(self) -> list[dict[str, float]]:
        """The lines of the history, one for each round, as numbers by the names of the columns."""
        return [dict(zip(self.names, map(float, line), strict=True)) for line in self.history]


class Rounds(ABC, Generic[P, S]):
    """The loop of rounds that add columns to a model where its loss is steepest; a subclass judges, chooses and refits.

    The `phase` of a state names its next pass: "sample" only samples rows, "search" evaluates the model and verifies
    candidates, and "refit" sums the system with the new columns, in subclasses that need a pass for it.
    """

    # names of the columns of the history that progress reports
    reported: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._rows = SearchedRows()

    def request(self, problem: P, state: S) -> Sequence[Record] | None:
        """The sums of the next pass, and the sample of the next search unless it is in memory; None at the end."""
        if state.message:
            return None
        sample = self._missing(problem, state)
        records = [] if state.phase == "sample" else [self._sums(problem, state)]
        return records if sample is None else [*records, sample]

    @one_blas_thread()
    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        """Judge the model, add the best candidates, refit, and propose the next ones."""
        if (sample := self._missing(problem, state)) is not None:
            self._rows.keep(sample, results[-1])
        if state.phase == "sample":
            return self._first_state(problem, state)
        if state.phase == "refit":
            return self._state_with_candidates(problem, self._refitted_state(problem, state, results[0]))
        state, is_judged = self._judged_state(problem, state, results[0])
        if state.message or not is_judged:
            return state
        state = self._extended_state(problem, state, results[0])
        return state if state.message or state.phase == "refit" else self._state_with_candidates(problem, state)

    def metrics(self, problem: P, state: S) -> dict[str, float]:
        """The numbers of the last round that progress reports, unless they are NaN or infinite."""
        if len(state.history) == 0:
            return {}
        last = {name: float(state.series(name)[-1]) for name in self.reported}
        return {name: value for name, value in last.items() if np.isfinite(value)}

    def _missing(self, problem: P, state: S) -> RowSample | None:
        """The sample that the next search needs, if it is not in memory.

        A resumed run has lost its sample, which is drawn again in the pass of the next sums.
        """
        sample = self._sample(problem, state)
        return None if sample is None or self._rows.has(sample) else sample

    @abstractmethod
    def _sample(self, problem: P, state: S) -> RowSample | None:
        """The sample that is searched after the next pass; None if there is no search."""

    @abstractmethod
    def _sums(self, problem: P, state: S) -> BlockSum:
        """The sums of the next pass, unless its phase is "sample"."""

    def _first_state(self, problem: P, state: S) -> S:
        """The state after the phase "sample"."""
        raise TypeError(f"{type(self).__name__} does not begin with rows")

    @abstractmethod
    def _judged_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> tuple[S, bool]:
        """The state with a line of history for the model; and whether candidates may join before the next pass."""

    @abstractmethod
    def _extended_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """The state with the best candidates in the model: refitted, or in the phase "refit"."""

    def _refitted_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """The state with the model refitted on all columns, after the phase "refit"."""
        raise TypeError(f"{type(self).__name__} refits without a pass")

    @abstractmethod
    def _state_with_candidates(self, problem: P, state: S) -> S:
        """The state with new candidates, searched on the sample at the slopes of the refitted model."""


def best_round(losses: np.ndarray) -> int:
    """The round whose model is kept: the last that gained on held-out rows; without held-out rows the newest.

    Parameters
    ----------
    losses : ndarray of shape (rounds,)
        Held-out losses, NaN if no row is held out.
    """
    return len(losses) - 1 if np.isnan(losses).all() else last_gain(losses, LEAST_GAIN)


def reason_to_end(losses: np.ndarray, patience: int | None, rounds: int | None, n_rounds: int) -> str:
    """The reason to end after these held-out losses, or after `n_rounds` rounds; empty to continue.

    Parameters
    ----------
    losses : ndarray of shape (rounds,)
        As for `best_round`.
    patience : int or None
        Rounds without a gain after which the search ends; None sets no such limit.
    rounds : int or None
        The most rounds; None sets no limit.
    n_rounds : int
    """
    is_judged = not np.isnan(losses).all()
    if patience is not None and is_judged and rounds_without_gain(losses, LEAST_GAIN) >= patience:
        return f"no lower loss on held-out rows in {patience} rounds"
    return f"ended after {rounds} rounds" if rounds is not None and n_rounds > rounds else ""


def bordered(gram: np.ndarray, is_old: np.ndarray, new_columns: np.ndarray) -> np.ndarray:
    """The symmetric Gram matrix of m columns, from that of the old ones and the products with the new ones.

    Parameters
    ----------
    gram : ndarray of shape (k, k)
        The Gram matrix of the old columns.
    is_old : ndarray of shape (m,), bool
    new_columns : ndarray of shape (m, m - k)
    """
    whole = np.empty((len(is_old), len(is_old)))
    whole[np.ix_(is_old, is_old)] = gram
    whole[np.ix_(is_old, ~is_old)], whole[np.ix_(~is_old, is_old)] = (
        new_columns[is_old],
        new_columns[is_old].T,
    )
    # float32 products above the diagonal differ by rounding from those below it
    lower = np.tril(new_columns[~is_old])
    whole[np.ix_(~is_old, ~is_old)] = lower + np.tril(lower, -1).T
    return whole


def padded_models(coefficients: np.ndarray, old: np.ndarray, width: int) -> np.ndarray:
    """Models (K, k) of old columns, their numbers or a mask of them, as models of `width` columns: 0 for new ones."""
    out = np.zeros((len(coefficients), width))
    out[:, old] = coefficients
    return out
