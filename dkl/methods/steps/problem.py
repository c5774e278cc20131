"""The rounds of steps as data: what is looked for, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import MOST_FACTORS, STEP, StepProjection
from dkl.linear.minibatches import HeldOut
from dkl.methods.margin.sums import HeldTargets
from dkl.methods.steps.binning import ColumnBins
from dkl.protocols.held_together import are_times
from dkl.solvers.losses import Loss

HISTORY = ("n_features", "held_out_loss", "penalty")


@dataclass(frozen=True, eq=False)
class StepProblem:
    """What the rounds look for.

    Parameters
    ----------
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, one a class (or target) else.
    n_columns : int
        d.
    n_features : int
        Atoms to find at most.
    loss : Loss
    depth : int
        Factors of an atom at most: 1 for main effects, 2 for pairs, 3.
    bins : int
        Edges of a column at most.
    search_rows : int
        Rows that edges are told from; where they are all rows or `in_memory`, the rounds look at them alone.
    in_memory : bool
        The rounds stay on the rows of the sample, without further passes.
    features_per_round : int
    patience : int
        The rounds end after so many without a lower loss on held-out rows.
    seed : int
    dtype : {"float32", "float64"}
    signs : ndarray of shape (d,), int64, or None
        1 for columns in which the model has to rise, -1 for those in which it has to fall.
    settling : int
        Once all atoms are there, a working model of another loss than the squared error, whose steps are Newton's or
        shorter, takes so many more of them at most, while held-out rows gain.
    given_bins : ColumnBins or None
        Bins that are known; None tells them from the sample.
    """

    targets: HeldTargets
    n_models: int
    n_columns: int
    n_features: int
    loss: Loss
    depth: int = 3
    bins: int = 64
    search_rows: int = 200_000
    in_memory: bool = True
    features_per_round: int = 25
    patience: int = 8
    seed: int = 0
    dtype: str = "float32"
    signs: np.ndarray | None = None
    settling: int = 0
    given_bins: ColumnBins | None = None


@dataclass(frozen=True, eq=False)
class BagRows:
    """Which rows judge a bag, and which it leaves out, so that bags differ.

    A bag judges on a share of the rows of its own. Where it is given who judges (a machine withholds rows, targets are
    in their codes, or the newest rows judge) all bags have the same judges, and each leaves out its own share beside.

    Parameters
    ----------
    judging : HeldOut
        Who judges where that is given.
    own : HeldOut
        The share of this bag.
    is_given : bool
    """

    judging: HeldOut
    own: HeldOut
    is_given: bool

    def judges(self, held_with: np.ndarray) -> np.ndarray:
        """Mask of the rows that judge, (n,)."""
        return (self.judging if self.is_given or are_times(held_with) else self.own).mask(held_with)

    def left_out(self, held_with: np.ndarray) -> np.ndarray:
        """Mask of the rows that this bag does not see, (n,); some of them may be among the judges."""
        if self.is_given or are_times(held_with):
            return self.own.mask(held_with)
        return np.zeros(len(held_with), bool)


@dataclass(frozen=True, eq=False)
class StepState:
    """Where the rounds stand. The first atom has no factors: it is the constant, whose coefficient is the intercept.

    Attributes
    ----------
    phase : {"sample", "refit", "search", "done"}
        What the next pass is for.
    edges, n_edges, low, high, center, scale, values : ndarray
        As of `ColumnBins`.
    columns, thresholds, kinds : ndarray of shape (m, 3)
        As of `StepProjection`.
    coefficients : ndarray of shape (K, known)
        Of the working model on atoms in units of their columns' deviations; atoms of this round have none yet.
    gram, gradient : ndarray of shape (m, m) and (m, K)
        The system of the working model, where the loss is the squared error: it only grows.
    trials : ndarray of shape (T, K, m)
        Coefficients that the next pass judges.
    penalties : ndarray of shape (T,)
        Of the trials, before a trial those that will be tried.
    best_loss : float
        The lowest loss on held-out rows.
    best : ndarray of shape (K, n)
        The coefficients that it was of, of the first n atoms.
    since : int
        Rounds since then.
    history : ndarray of shape (rounds, 3)
        A line a round, by `HISTORY`.
    message : str
        How the rounds ended.
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
    coefficients: np.ndarray
    gram: np.ndarray
    gradient: np.ndarray
    trials: np.ndarray
    penalties: np.ndarray
    best_loss: float
    best: np.ndarray
    since: int
    history: np.ndarray
    message: str = ""

    @property
    def n_atoms(self) -> int:
        """Atoms that were found, the constant included."""
        return len(self.columns)

    @property
    def bins(self) -> ColumnBins:
        return ColumnBins(self.edges, self.n_edges, self.low, self.high, self.center, self.scale, self.values)

    def feature_map(self, atoms: np.ndarray | slice = slice(None)) -> FeatureMap:
        """The atoms in units of their columns' deviations, amplitudes 1 for steps."""
        units = np.where(self.kinds[atoms] == STEP, 1.0, self.scale[np.maximum(self.columns[atoms], 0)])
        return FeatureMap("steps", self.projection(atoms), 1.0 / units.prod(axis=1))

    def projection(self, atoms: np.ndarray | slice = slice(None)) -> StepProjection:
        """The factors of the atoms."""
        return StepProjection(self.columns[atoms], self.thresholds[atoms], self.kinds[atoms], self.high)


def first_state(problem: StepProblem) -> StepState:
    """The constant alone, and no edges yet."""
    d, K = problem.n_columns, problem.n_models
    return StepState(
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
        coefficients=np.zeros((K, 0)),
        gram=np.zeros((0, 0)),
        gradient=np.zeros((0, K)),
        trials=np.zeros((0, K, 1)),
        penalties=np.array([0.1, 1.0, 10.0, 100.0]),
        best_loss=np.inf,
        best=np.zeros((K, 1)),
        since=0,
        history=np.zeros((0, len(HISTORY))),
    )
