"""The loop of rounds: verify candidates by a pass, judge the model, let the best join, refit, propose the next ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from dkl.methods.frequency_search.searched_rows import SearchedRows
from dkl.protocols.records import BlockSum, Record, RowSample

P = TypeVar("P")
# A frozen dataclass with `history`, a line a round; `phase`, what its next pass is for; and `message`, how it ended.
S = TypeVar("S", bound=Any)


class Rounds(ABC, Generic[P, S]):
    """Rounds that add columns to a model where it errs most, for heads that are judged and refitted differently.

    A state asks for one of three kinds of passes by its `phase`: "sample" draws rows alone, "search" judges the model
    and verifies candidates, and "refit" sums the system of the columns that have joined, where the head needs that.
    """

    # columns of the history, and those of them that subscribers hear of
    history: ClassVar[tuple[str, ...]]
    heard: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._rows = SearchedRows()

    def request(self, problem: P, state: S) -> Sequence[Record] | None:
        """The sums of the next pass, and the rows of the next search where they are not at hand; None at the end."""
        if state.message:
            return None
        sums, sample = self._sums(problem, state), self._missing(problem, state)
        return [record for record in (sums, sample) if record is not None]

    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        """Judge the model, let the best candidates join, refit, and propose the next ones."""
        if (sample := self._missing(problem, state)) is not None:
            self._rows.keep(sample, results[-1])
        if state.phase == "sample":
            return self._begun(problem, state)
        if state.phase == "refit":
            return self._proposed(problem, self._refitted(problem, state, results[0]))
        state, is_judged = self._judged(problem, state, results[0])
        if state.message or not is_judged:
            return state
        state = self._extended(problem, state, results[0])
        return state if state.message or state.phase == "refit" else self._proposed(problem, state)

    def metrics(self, problem: P, state: S) -> dict[str, float]:
        """The numbers of the last round, those that are known."""
        if len(state.history) == 0:
            return {}
        last = lines_of(self.history, state.history[-1:])[0]
        return {name: last[name] for name in self.heard if np.isfinite(last[name])}

    def _missing(self, problem: P, state: S) -> RowSample | None:
        """The rows to search on, where the next search needs them and they are not at hand.

        A run that was broken off has lost its rows, which are drawn again beside the next sums.
        """
        sample = self._sample(problem, state)
        return None if sample is None or self._rows.has(sample) else sample

    @abstractmethod
    def _sample(self, problem: P, state: S) -> RowSample | None:
        """The rows that are searched on after the next pass; None where nothing is."""

    @abstractmethod
    def _sums(self, problem: P, state: S) -> BlockSum | None:
        """What the next pass sums; None where it only draws rows."""

    def _begun(self, problem: P, state: S) -> S:
        """The state once the first rows were drawn, for rounds that begin so."""
        raise TypeError(f"{type(self).__name__} does not begin with rows")

    @abstractmethod
    def _judged(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> tuple[S, bool]:
        """With a line of history for the model, and whether candidates may join; False where it is evaluated again."""

    @abstractmethod
    def _extended(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """With the candidates that are worth most; refitted on them, or in the phase "refit"."""

    def _refitted(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """With the model on all columns, for heads that sum its system by a pass of its own."""
        raise TypeError(f"{type(self).__name__} refits without a pass")

    @abstractmethod
    def _proposed(self, problem: P, state: S) -> S:
        """With new candidates, found on the rows at the slopes of the refitted model."""


def lines_of(names: Sequence[str], history: np.ndarray) -> list[dict[str, float]]:
    """A history as users read it: a dict a round."""
    return [dict(zip(names, map(float, line), strict=True)) for line in history]
