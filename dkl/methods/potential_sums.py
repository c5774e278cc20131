"""The pass that selection of candidates needs: sums of their features by class, the record of it, and its drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import array_module, sums_on_host, with_targets
from dkl.kernels.maps import mapping_flops
from dkl.kernels.sums import encode_targets, feature_squares, feature_sums
from dkl.kernels.tiles import spans
from dkl.methods.posterior.weights import pair_losses
from dkl.protocols.block import Block
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost, Record
from dkl.solvers.kernel_alignment import class_alignments, class_diagonal, regression_alignments, regression_diagonal

# Bytes of the tiles of mapped rows while a block is summed.
_TILE_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class PotentialProblem:
    """The sums that the pass over the rows computes.

    Parameters
    ----------
    candidates : FeatureMap
        With amplitudes of 1.
    n_classes : int or None
        None for regression.
    n_outputs : int
        Targets of a regression.
    class_weight : ndarray of shape (K,) or None
        Weights of the classes, which multiply the weights of rows.
    dtype : {"float32", "float64"}
        Of the arithmetic; sums are float64.
    center : bool
        Subtract the mean from the class indicators (regression targets are always centred).
    diagonal : bool
        Include the terms i = j, as (4) does. False subtracts them.
    similarity : ndarray of shape (K, K) or None
        The similarity of two labels; None is 1 within a class and -1 across.
    pivot : ndarray of shape (n_outputs,) or None
        A value near the mean of regression targets, subtracted first: sums of float32 features would lose the variation
        of large targets.
    """

    candidates: FeatureMap
    n_classes: int | None
    n_outputs: int = 1
    class_weight: np.ndarray | None = None
    dtype: str = "float32"
    center: bool = False
    diagonal: bool = True
    similarity: np.ndarray | None = None
    pivot: np.ndarray | None = None

    @property
    def n_targets(self) -> int:
        """Columns of the encoded targets: one a class, or [y, 1]."""
        return self.n_outputs + 1 if self.n_classes is None else self.n_classes

    @property
    def n_squares(self) -> int:
        """Columns of the weights of squared features: one a class, or [y^2, y, 1]; 0 if they are not needed."""
        if not self.needs_squares:
            return 0
        return 2 * self.n_outputs + 1 if self.n_classes is None else self.n_classes

    @property
    def needs_squares(self) -> bool:
        """Whether the diagonal needs its own sum; pairs do not, since cos^2 + sin^2 = 1 whatever w is."""
        return not self.diagonal and self.candidates.columns_a_frequency == 1

    def features_of(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """The sums of the candidates' features times targets, (parts, m, n_targets), of all panels of a pass."""
        return self._joined("features", self.n_targets, sums)

    def squares_of(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """The weighted sums of their squares, (parts, m, n_squares), of all panels of a pass."""
        return self._joined("squares", self.n_squares, sums)

    def _joined(self, name: str, width: int, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        panels = target_panels(self.candidates.columns_a_frequency, self.candidates.n_frequencies, width)
        return np.concatenate([sums[f"{name}{panel.start}"] for panel in panels], axis=2)


@dataclass(frozen=True, eq=False)
class PotentialState:
    """Before the pass `values` is None; after it the alignments or losses of all candidates.

    Parameters
    ----------
    values : ndarray of shape (m,) or None
    total : float
        The total weight of the rows.
    itself : float
        The sum of each row's similarity with itself: a bound on the part of an alignment from pairs of equal rows.
    """

    values: np.ndarray | None = None
    total: float = 0.0
    itself: float = 0.0


def potential_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One block's sums of the candidates' features times targets, of the targets, and of squared features if needed.

    Operands: "problem" (a `PotentialProblem`).
    """
    problem = operands["problem"]
    targets, xp = encode_targets(with_targets(block), problem.n_classes, problem.class_weight), array_module(block.X)
    if problem.pivot is not None:
        targets[:, :-1] -= xp.asarray(problem.pivot) * targets[:, -1:]
    features = feature_sums(block.X, targets, problem.candidates, dtype=problem.dtype, stay=True)
    sums = {"targets": targets.sum(axis=0), **_cut("features", features)}
    if problem.needs_squares:
        # Squared features are weighted by class indicators, or by [y^2, y, 1] times the weights. The targets are weight
        # times y, so their square is divided by the weight once.
        weights = targets
        if problem.n_classes is None:
            weights = xp.concat([xp.square(targets[:, :-1]) / targets[:, -1:], targets], axis=1)
        columns = [
            feature_squares(block.X, xp.ascontiguousarray(column), problem.candidates, dtype=problem.dtype, stay=True)
            for column in weights.T
        ]
        sums |= _cut("squares", xp.stack(columns, axis=2))
    return sums_on_host(sums)


def target_panels(parts: int, size: int, width: int) -> list[slice]:
    """Ranges of target columns such that no accumulator of sums exceeds 64 MiB."""
    return list(spans(width, max(1, LARGEST_ACCUMULATOR // (8 * parts * size))))


def _cut(name: str, sums: Any) -> dict[str, Any]:
    """Sums of shape (parts, m, K), cut into the accumulators of the record."""
    return {f"{name}{panel.start}": sums[:, :, panel] for panel in target_panels(*sums.shape)}


def sums_by_fold(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`potential_sums` for the rows of each fold, stacked along a first axis.

    Operands: "problem" (a `PotentialProblem`), "folds" (row ids to folds).
    """
    folds = operands["folds"]
    number = folds(block.held_with)
    present = np.unique(number)
    sums_of = {fold: potential_sums(block.rows(number == fold), operands) for fold in present}
    zeros = {name: np.zeros_like(sums) for name, sums in sums_of[present[0]].items()}
    return {name: np.stack([sums_of.get(fold, zeros)[name] for fold in (*range(folds.count), -1)]) for name in zeros}


def potential_record(problem: PotentialProblem) -> BlockSum:
    """The record of the pass that sums features by class."""
    candidates = problem.candidates
    parts, size = candidates.columns_a_frequency, candidates.n_frequencies
    accumulators = {"targets": Accumulator((problem.n_targets,))}
    for name, width in (("features", problem.n_targets), ("squares", problem.n_squares)):
        for panel in target_panels(parts, size, width):
            accumulators[f"{name}{panel.start}"] = Accumulator((parts, size, panel.stop - panel.start))

    def cost(rows: int, columns: int) -> Cost:
        # a row is mapped once, and again for each column of squares; each feature costs a multiply-add for each target
        n_sums = problem.n_targets + problem.n_squares
        mapping = mapping_flops(columns, candidates) * (1 + problem.n_squares)
        reduction = 2 * n_sums * candidates.n_features
        # the frequencies are copied where rows are sparse or the arithmetic is float64
        copied = candidates.projection.nbytes * (2 if problem.dtype == "float64" else 1)
        scratch = 16 * candidates.n_features * n_sums + 8 * rows * problem.n_targets + copied + _TILE_BYTES
        return Cost(flops=float(rows) * (mapping + reduction), scratch_bytes=scratch)

    return BlockSum("potentials", potential_sums, accumulators, {"problem": problem}, cost=cost)


class _PotentialDriver:
    """One pass for the class sums, from which subclasses compute values of the candidates."""

    def init(self, problem: PotentialProblem) -> PotentialState:
        return PotentialState()

    def request(self, problem: PotentialProblem, state: PotentialState) -> Sequence[Record] | None:
        return None if state.values is not None else (potential_record(problem),)

    def plan(self, problem: PotentialProblem) -> Sequence[tuple[Sequence[Record], int]]:
        return [((potential_record(problem),), 1)]


class AlignmentDriver(_PotentialDriver):
    """The alignments v of all candidates (Sinha & Duchi 2016, equation (4)) in one pass."""

    def step(self, problem: PotentialProblem, state: PotentialState, results: Sequence[Any]) -> PotentialState:
        (sums,) = results
        targets, features = sums["targets"], problem.features_of(sums)
        is_regression = problem.n_classes is None
        if is_regression:
            values = regression_alignments(features, targets)
        else:
            values = class_alignments(features, targets, center=problem.center, similarity=problem.similarity)
        if problem.needs_squares:
            # minus the terms i = j of (4); for pairs they are the same for all candidates, and change no weight
            squares = problem.squares_of(sums)
            if is_regression:
                values = values - regression_diagonal(squares, targets)
            else:
                values = values - class_diagonal(squares, targets, center=problem.center, similarity=problem.similarity)
        total = total_weight(problem, sums)
        S = problem.similarity
        return PotentialState(values, total, total if S is None else _itself(problem, S, targets))


class PosteriorDriver(_PotentialDriver):
    """The losses of all candidates (Letarte, Morvant & Germain 2019, proposition 8) in one pass."""

    def step(self, problem: PotentialProblem, state: PotentialState, results: Sequence[Any]) -> PotentialState:
        (sums,) = results
        features = problem.features_of(sums)
        return PotentialState(values=pair_losses(features, sums["targets"]), total=total_weight(problem, sums))


def _itself(problem: PotentialProblem, similarity: np.ndarray, totals: np.ndarray) -> float:
    """The sum of s_ii over the rows; of a cosine with a phase, whose square is at most 1, of its positive terms."""
    of_class = np.diagonal(similarity)
    return float(totals @ (of_class if problem.candidates.activation == "cos-sin" else np.maximum(of_class, 0.0)))


def total_weight(problem: PotentialProblem, sums: Mapping[str, np.ndarray]) -> float:
    """The weight of all rows, class factors included: over classes, or the targets' column of ones in regression."""
    targets = sums["targets"]
    return float(targets[-1] if problem.n_classes is None else targets.sum())
