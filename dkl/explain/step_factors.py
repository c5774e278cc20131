"""Writes a model on steps as a sum of products of factors of single columns, for its effects and contributions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import numpy as np

from dkl.explain.column_groups import Columns
from dkl.explain.model import mixes_columns
from dkl.explain.wave_pass import chosen_scaler
from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.features.step_projection import MOST_FACTORS, Factor, StepProjection
from dkl.kernels.explanations import factor_sums
from dkl.kernels.maps import map_rows
from dkl.kernels.step_tiles import STEP_FLOPS, TILE_ROWS
from dkl.linear.answers import Scorer
from dkl.protocols.arrays import Rows
from dkl.protocols.records import Accumulator, BlockSum, Cost


@dataclass(frozen=True, eq=False)
class ColumnSteps:
    """Products of steps and hinges of one column, as a feature map on its encoded columns."""

    feature_map: FeatureMap
    columns: np.ndarray

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The products at unscaled rows (n, k) of these columns: float64 (n, m)."""
        return map_rows(rows, self.feature_map, "float64")


@dataclass(frozen=True, eq=False)
class StepFactors:
    """f(x) = sum_a coef_a prod_s factor_{index[a, s]}(x), with factors of single columns, without the intercept.

    If a column has several encoded ones, its factor is the product of an atom's steps and hinges on these.

    Parameters
    ----------
    factors : StepProjection
        The U distinct factors.
    scaler : Scaler or None
        The scaling of the rows.
    columns : ndarray of shape (U,), int64
        The column of each factor, as a position in `Columns`.
    index : ndarray of shape (m, 3), int64
        The factors of each atom, of different columns; -1 where an atom has fewer than three.
    coef : ndarray of shape (m, K), float64
        The coefficients of the atoms, times their amplitudes.
    """

    factors: StepProjection
    scaler: Scaler | None
    columns: np.ndarray
    index: np.ndarray
    coef: np.ndarray

    @classmethod
    def of(cls, scorer: Scorer, known: Columns, coef: np.ndarray | None = None) -> Self | None:
        """The factors of a model on steps, with its coefficients or `coef` (K, m); None for other features."""
        feature_map, steps = scorer.feature_map, scorer.feature_map.projection
        if not isinstance(steps, StepProjection) or mixes_columns(feature_map):
            return None
        column_of = np.empty(feature_map.n_columns, np.int64)
        for position, members in enumerate(known.members):
            column_of[members] = position
        # Many atoms have common factors; each distinct one is computed once.
        numbers: dict[tuple[Factor, ...], int] = {}
        index = np.full((steps.n_frequencies, MOST_FACTORS), -1)
        for a, atom in enumerate(steps.factors):
            by_column: dict[int, list[Factor]] = {}
            for factor in atom:
                by_column.setdefault(int(column_of[factor[0]]), []).append(factor)
            for s, own in enumerate(by_column.values()):
                index[a, s] = numbers.setdefault(tuple(sorted(own)), len(numbers))
        distinct = StepProjection.of_factors(list(numbers), steps.high)
        return cls(
            distinct,
            feature_map.scaler,
            column_of[distinct.columns[:, 0]],
            index,
            ((scorer.coef if coef is None else coef) * feature_map.amplitudes).T.astype(np.float64),
        )

    @property
    def n_functions(self) -> int:
        """The number of factors and, last, one for the index -1."""
        return self.factors.n_frequencies + 1

    def values(self, rows: Rows) -> np.ndarray:
        """The factors at rows (n, d) and, last, a column of ones for the index -1: (n, U + 1) float64."""
        factors = map_rows(rows, self._feature_map, "float64")
        return np.hstack([factors, np.ones((len(factors), 1))])

    def terms(self, means: np.ndarray, most_columns: int) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
        """The terms of each effect in the functional analysis of variance with independent columns.

        A product is ``prod_c f_c = sum_T prod_{c in T} (f_c - mu_c) prod_{c not in T} mu_c``: the term of the columns T
        is a product of centred factors, and its coefficient the atom's times the means of the others.

        Parameters
        ----------
        means : ndarray of shape (U + 1,)
            The means mu of the factors, then 1.
        most_columns : int
            The largest number of columns of an effect; atoms on more columns are left out.

        Returns
        -------
        dict of tuple of int to (ndarray of shape (u, |T|), ndarray of shape (u, K))
            By the columns of an effect, ascending: the factors of each distinct product, in the order of the columns,
            and its coefficients.
        """
        sums: dict[tuple[int, ...], dict[tuple[int, ...], np.ndarray]] = {}
        for numbers, coef in zip(self.index, self.coef, strict=True):
            # the factors of this atom, in the order of their columns
            own = sorted((int(u) for u in numbers if u >= 0), key=lambda u: int(self.columns[u]))
            if len(own) > most_columns:
                continue
            for size in range(1, len(own) + 1):
                for inside in combinations(own, size):
                    of_columns = sums.setdefault(tuple(int(self.columns[u]) for u in inside), {})
                    others = np.prod([means[u] for u in own if u not in inside])
                    of_columns[inside] = of_columns.get(inside, 0.0) + coef * others
        return {
            columns: (np.array(list(products)), np.array(list(products.values()))) for columns, products in sums.items()
        }

    def of_column(self, column: int, numbers: np.ndarray, known: Columns) -> ColumnSteps:
        """The given factors, all of one column, as functions of its encoded columns."""
        chosen, members = self.factors.take(numbers), known.members[column]
        place = np.full(self.factors.n_columns + 1, -1)
        place[members] = np.arange(len(members))
        # The last entry of `place` is -1, so that the index -1 (no factor) is kept.
        own = replace(chosen, columns=place[chosen.columns].astype(np.int32), high=chosen.high[members])
        scaler = chosen_scaler(self.scaler, members)
        return ColumnSteps(FeatureMap("steps", own, np.ones(len(numbers)), scaler=scaler), members)

    def record(self) -> BlockSum:
        """The record of the pass whose result is the argument of `means`."""
        U = self.factors.n_frequencies
        accumulators = {"sums": Accumulator((U,)), "weight": Accumulator(())}

        def cost(rows: int, columns: int) -> Cost:
            # the values of a tile, and its dense rows in double precision
            return Cost(STEP_FLOPS * rows * U, 8 * min(rows, TILE_ROWS) * (2 * U + columns))

        return BlockSum("steps of single columns", factor_sums, accumulators, {"factors": self._feature_map}, cost)

    @property
    def _feature_map(self) -> FeatureMap:
        """The map whose features are the factors."""
        return FeatureMap("steps", self.factors, np.ones(self.factors.n_frequencies), scaler=self.scaler)

    @staticmethod
    def means(result: dict[str, np.ndarray]) -> np.ndarray:
        """The mean of each factor over the rows, then 1: (U + 1,)."""
        return np.append(result["sums"] / result["weight"], 1.0)
