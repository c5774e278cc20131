"""The problem of rounds over dictionaries, and its state between passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dkl.features.feature_map import FeatureMap, combined_map
from dkl.features.step_projection import MOST_FACTORS, STEP, StepProjection
from dkl.methods.rounds.dictionary import Dictionary
from dkl.methods.rounds.loop import HeldTargets, WithHistory
from dkl.methods.steps.binning import ColumnBins
from dkl.solvers.losses import Loss


@dataclass(frozen=True, eq=False)
class RoundsProblem:
    """Parameters of rounds over dictionaries, and the targets that they fit.

    Parameters
    ----------
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, else one for each class (or target).
    n_rows, n_columns : int
        n and d.
    n_features : int
        The most columns to find.
    loss : Loss
    dictionaries : tuple of Dictionary
        All dictionaries except steps and columns; they propose points on a sample of the rows.
    depth : int
        The most factors of a step: 1 for main effects, 2 for pairs, 3; 0 for no steps.
    bins : int
        The most thresholds of a column.
    has_columns : bool or None
        Whether the model starts with all columns as linear terms; None: if they are few compared to `n_features`.
    search_rows : int
        Size of the sample from which thresholds are computed, and on which dictionaries propose.
    in_memory : bool
        Whether all rounds run on the rows of the sample, without further passes.
    features_per_round : int
    growth : float
        A round adds this share of the present number of columns, if that is more than `features_per_round`.
    patience : int
        Rounds without a gain on held-out rows after which the search ends; see `dkl.methods.rounds.loop.best_round`.
    rounds : int or None
        The most rounds; None sets no limit.
    seed : int
    dtype : {"float32", "float64"}
    signs : ndarray of shape (d,), int64, or None
        1 for columns in which the model must increase, -1 for those in which it must decrease.
    settling : int
        The most further Newton steps, once all columns are found, for losses other than the squared error; they end
        when the held-out loss no longer falls.
    given_bins : ColumnBins or None
        The bins of columns; None computes them from the sample.
    """

    targets: HeldTargets
    n_models: int
    n_rows: int
    n_columns: int
    n_features: int
    loss: Loss
    dictionaries: tuple[Dictionary, ...] = ()
    depth: int = 3
    bins: int = 64
    has_columns: bool | None = None
    search_rows: int = 200_000
    in_memory: bool = True
    features_per_round: int = 25
    growth: float = 0.0
    patience: int = 8
    rounds: int | None = None
    seed: int = 0
    dtype: str = "float32"
    signs: np.ndarray | None = None
    settling: int = 0
    given_bins: ColumnBins | None = None


@dataclass(frozen=True, eq=False)
class RoundsState(WithHistory):
    """The state of rounds over dictionaries between passes.

    The columns of the working model are ordered: the atoms (the constant, linear terms, steps and hinges), then the
    points of each dictionary; for pairs all cosines and then all sines. The first atom has no factors: it is the
    constant, and its coefficient is the intercept.

    Attributes
    ----------
    phase : {"sample", "refit", "search"}
        The purpose of the next pass; see `dkl.methods.rounds.loop.Rounds`.
    edges, n_edges, low, high, center, scale, values : ndarray
        The fields of `ColumnBins`.
    columns, thresholds, kinds : ndarray of shape (a, 3)
        The atoms, as in `StepProjection`.
    points : ndarray of shape (p, d)
        The points of the dictionaries, in the order in which they were added.
    source : ndarray of shape (p,), int64
        For each point the number of its dictionary.
    units : ndarray of shape (number of dictionaries,)
        The amplitudes of the columns of each dictionary.
    candidates, candidate_source : ndarray of shape (c, d) and (c,)
        Points that the next pass verifies, and the numbers of their dictionaries.
    known : ndarray of shape (2,), int64
        The numbers of atoms and points in the system and the coefficients.
    coefficients : ndarray of shape (K, known)
        The working model, for atoms in units of their columns' deviations, without the columns of this round.
    gram : ndarray of shape (m, m)
        The matrix of the linear system of the working model. For the squared error old entries stay, and new ones are
        appended.
    trials : ndarray of shape (T, K, m)
        Coefficients that the next pass judges.
    penalties : ndarray of shape (T,)
        The penalties of the trials, or, in the phase "refit", of the next trials.
    best : ndarray of shape (K, n)
        The coefficients of the last round that gained on held-out rows.
    best_sizes : ndarray of shape (2,), int64
        The numbers of atoms and points that `best` covers.
    history : ndarray of shape (rounds, 3)
        One line for each round, with the columns `names`.
    message : str
        Why the rounds ended; empty before.
    """

    phase: str
    edges: np.ndarray
    n_edges: np.ndarray
    low: np.ndarray
    high: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    values: np.ndarray
    columns: np.ndarray
    thresholds: np.ndarray
    kinds: np.ndarray
    points: np.ndarray
    source: np.ndarray
    units: np.ndarray
    candidates: np.ndarray
    candidate_source: np.ndarray
    known: np.ndarray
    coefficients: np.ndarray
    gram: np.ndarray
    trials: np.ndarray
    penalties: np.ndarray
    best: np.ndarray
    best_sizes: np.ndarray
    history: np.ndarray
    message: str = ""

    names: ClassVar[tuple[str, ...]] = ("n_features", "held_out_loss", "penalty")

    @property
    def n_atoms(self) -> int:
        """The number of atoms found, including the constant."""
        return len(self.columns)

    @property
    def bins(self) -> ColumnBins:
        return ColumnBins(self.edges, self.n_edges, self.low, self.high, self.center, self.scale, self.values)

    def atom_map(self, atoms: np.ndarray | slice = slice(None)) -> FeatureMap:
        """The atoms in units of their columns' deviations, amplitudes 1 for steps."""
        units = np.where(self.kinds[atoms] == STEP, 1.0, self.scale[np.maximum(self.columns[atoms], 0)])
        return FeatureMap("steps", self.projection(atoms), 1.0 / units.prod(axis=1))

    def projection(self, atoms: np.ndarray | slice = slice(None)) -> StepProjection:
        """The factors of atoms."""
        return StepProjection(self.columns[atoms], self.thresholds[atoms], self.kinds[atoms], self.high)


def first_state(problem: RoundsProblem) -> RoundsState:
    """The state before the first pass: the constant is the only atom, and the columns have no thresholds yet."""
    d, K = problem.n_columns, problem.n_models
    return RoundsState(
        phase="sample",
        edges=np.full((d, problem.bins), np.inf),
        n_edges=np.zeros(d, np.int64),
        low=np.zeros(d),
        high=np.zeros(d),
        center=np.zeros(d),
        scale=np.ones(d),
        values=np.zeros((d, problem.bins)),
        columns=np.full((1, MOST_FACTORS), -1, np.int32),
        thresholds=np.zeros((1, MOST_FACTORS)),
        kinds=np.zeros((1, MOST_FACTORS), np.int8),
        points=np.zeros((0, d)),
        source=np.zeros(0, np.int64),
        units=np.ones(len(problem.dictionaries)),
        candidates=np.zeros((0, d)),
        candidate_source=np.zeros(0, np.int64),
        known=np.array([0, 0]),
        coefficients=np.zeros((K, 0)),
        gram=np.zeros((0, 0)),
        trials=np.zeros((0, K, 1)),
        penalties=np.array([0.1, 1.0, 10.0, 100.0]),
        best=np.zeros((K, 1)),
        best_sizes=np.array([1, 0]),
        history=np.zeros((0, len(RoundsState.names))),
    )


def model_map(problem: RoundsProblem, state: RoundsState) -> FeatureMap:
    """The columns of the working model."""
    maps = _maps(problem, state, state.points, state.source)
    return combined_map([state.atom_map(), *maps]) if maps else state.atom_map()


def candidate_map(problem: RoundsProblem, state: RoundsState) -> FeatureMap | None:
    """The columns of the candidates, by dictionary; None without candidates."""
    parts = _maps(problem, state, state.candidates, state.candidate_source)
    return combined_map(parts) if parts else None


def _maps(problem: RoundsProblem, state: RoundsState, points: np.ndarray, source: np.ndarray) -> list[FeatureMap]:
    """The columns of points, with the amplitudes of their dictionaries, for each dictionary that has points."""
    maps = []
    for number, (dictionary, unit) in enumerate(zip(problem.dictionaries, state.units, strict=True)):
        own = points[source == number]
        if len(own):
            one = dictionary.feature_map(own)
            maps.append(replace(one, amplitudes=unit * one.amplitudes))
    return maps


def are_old_columns(problem: RoundsProblem, state: RoundsState, n_atoms: int, n_points: int) -> np.ndarray:
    """A mask (m,) of the model's columns that belong to the first `n_atoms` atoms and `n_points` points."""
    parts = [np.arange(state.n_atoms) < n_atoms]
    for number, dictionary in enumerate(problem.dictionaries):
        own = np.flatnonzero(state.source == number)
        parts.append(np.tile(own < n_points, dictionary.columns_a_point))
    return np.concatenate(parts)
