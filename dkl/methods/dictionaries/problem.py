"""Rounds over several dictionaries as data: what is looked for, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dkl.features.feature_map import FeatureMap, combined_map
from dkl.methods.dictionaries.sampled_dictionaries import Source
from dkl.methods.steps.problem import StepProblem, StepState, first_state


def _none() -> np.ndarray:
    return np.zeros((0, 0))


def _no_numbers() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class DictionaryProblem(StepProblem):
    """What the rounds look for, beside what a `StepProblem` says.

    Parameters
    ----------
    sources : tuple of Source
        The dictionaries beside steps and columns.
    has_steps : bool
        Whether products of steps take part.
    has_columns : bool
        Whether all columns as straight lines stand at the beginning.
    growth : float
        A round adds this share of the columns that are there, if that is more than `features_per_round`.
    rounds : int or None
        At most so many.
    """

    sources: tuple[Source, ...] = ()
    has_steps: bool = True
    has_columns: bool = False
    growth: float = 0.1
    rounds: int | None = None


@dataclass(frozen=True, eq=False)
class CompetitionState(StepState):
    """Where the rounds stand: steps as of `StepState`, and points of the other dictionaries.

    The columns of the working model come in this order: the constant and the steps, then the points of each source,
    of pairs all cosines and then all sines.

    Attributes
    ----------
    points : ndarray of shape (p, d)
        In the order in which they were found.
    source : ndarray of shape (p,), int64
        Which of the problem's sources each is of.
    candidates, candidate_source : ndarray of shape (c, d) and (c,)
        Points that the next pass verifies.
    known : ndarray of shape (2,), int64
        Of how many atoms and points the system and the coefficients are.
    best_sizes : ndarray of shape (2,), int64
        Of how many `best` is.
    units : ndarray of shape (number of sources,)
        The amplitudes of the columns of each source.
    """

    points: np.ndarray = field(default_factory=_none)
    source: np.ndarray = field(default_factory=_no_numbers)
    candidates: np.ndarray = field(default_factory=_none)
    candidate_source: np.ndarray = field(default_factory=_no_numbers)
    known: np.ndarray = field(default_factory=_no_numbers)
    best_sizes: np.ndarray = field(default_factory=_no_numbers)
    units: np.ndarray = field(default_factory=_no_numbers)


def first_dictionary_state(problem: DictionaryProblem) -> CompetitionState:
    """The constant alone."""
    none = np.zeros((0, problem.n_columns))
    start = np.array([0, 0])
    return CompetitionState(
        **vars(first_state(problem)),
        points=none,
        candidates=none,
        known=start,
        best_sizes=np.array([1, 0]),
        units=np.ones(len(problem.sources)),
    )


def model_map(problem: DictionaryProblem, state: CompetitionState) -> FeatureMap:
    """The columns of the working model."""
    return combined_map([state.feature_map(), *_maps(problem, state, state.points, state.source)])


def candidate_map(problem: DictionaryProblem, state: CompetitionState) -> FeatureMap | None:
    """The columns of the candidates, source by source; None where there are none."""
    parts = _maps(problem, state, state.candidates, state.candidate_source)
    return combined_map(parts) if parts else None


def _maps(
    problem: DictionaryProblem, state: CompetitionState, points: np.ndarray, source: np.ndarray
) -> list[FeatureMap]:
    """The columns of points, in the units of their sources, of each source that has some."""
    maps = []
    for number, (dictionary, unit) in enumerate(zip(problem.sources, state.units, strict=True)):
        own = points[source == number]
        if len(own):
            one = dictionary.feature_map(own)
            maps.append(replace(one, amplitudes=unit * one.amplitudes))
    return maps


def columns_known(problem: DictionaryProblem, state: CompetitionState, n_atoms: int, n_points: int) -> np.ndarray:
    """Which columns of the working model are of the first so many atoms and points: bool of shape (m,)."""
    parts = [np.arange(state.n_atoms) < n_atoms]
    for number, source in enumerate(problem.sources):
        own = np.flatnonzero(state.source == number)
        parts.append(np.tile(own < n_points, source.columns_a_point))
    return np.concatenate(parts)
