"""Writes a model on an additive kernel at landmarks as a sum of products of functions of single columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Self

import numpy as np

from dkl.explain.column_groups import Columns
from dkl.explain.model import mixes_columns
from dkl.explain.wave_pass import chosen_scaler
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.scaling import Scaler
from dkl.features.sparse_frequencies import SparseFrequencies, symmetric_sums
from dkl.kernels.scale import scale_rows
from dkl.linear.answers import Scorer


@dataclass(frozen=True, eq=False)
class ColumnKernels:
    """The kernels between one column and the landmarks: sums over sets of encoded columns of products of kernels.

    Parameters
    ----------
    kernel : SparseFrequencies
        With `most_columns` and a bandwidth.
    landmarks : ndarray of shape (l, k)
        The landmarks in the k encoded columns of the column.
    scaler : Scaler or None
        The scaling of these encoded columns.
    metric : ndarray of shape (k,) or None
    columns : ndarray of int, shape (k,)
        The numbers of the encoded columns in a row.
    sizes : tuple of int
        The number of encoded columns in the products of each block of l functions.
    """

    kernel: SparseFrequencies
    landmarks: np.ndarray
    scaler: Scaler | None
    metric: np.ndarray | None
    columns: np.ndarray
    sizes: tuple[int, ...]

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The functions at rows (n, k) of these columns, unscaled: float64 (n, l len(sizes))."""
        every = self.sums(rows)
        return np.concatenate([every[size - 1] for size in self.sizes]).T

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """The symmetric sums e_1, ..., e_r of the kernels between landmarks and unscaled rows (n, k): (r, l, n)."""
        scaled = in_metric(scale_rows(rows, self.scaler, "float64"), self.metric)
        of_each = (
            self.kernel.family.kernel(self.landmarks[:, c : c + 1], scaled[:, c : c + 1])
            for c in range(scaled.shape[1])
        )
        most = min(self.kernel.most_columns or 0, scaled.shape[1])
        return np.stack(symmetric_sums(of_each, most, (len(self.landmarks), len(scaled)))[1:])


@dataclass(frozen=True, eq=False)
class KernelFactors:
    """f(x) = sum_l a_l sum_s w_s e_s(k_1(x_1, z_l1), ..., k_d(x_d, z_ld)) with landmarks z, without the intercept.

    Parameters
    ----------
    parts : tuple of ColumnKernels
        The kernels of each of the G columns, with all sizes.
    weights : ndarray of shape (q + 1,)
        w_s, the weight of sets of s encoded columns.
    coef : ndarray of shape (l, K)
        a.
    """

    parts: tuple[ColumnKernels, ...]
    weights: np.ndarray
    coef: np.ndarray

    @classmethod
    def of(cls, scorer: Scorer, known: Columns) -> Self | None:
        """The factors of a model on a kernel of few columns at landmarks; None for a model on other features."""
        feature_map, projection = scorer.feature_map, scorer.feature_map.projection
        if not isinstance(projection, NystromProjection):
            return None
        kernel, metric = projection.kernel, projection.metric
        # with a metric or scaling that mixes columns there are no functions of single columns
        is_apart = (metric is None or metric.ndim == 1) and not mixes_columns(feature_map)
        if not (isinstance(kernel, SparseFrequencies) and kernel.most_columns is not None and is_apart):
            return None
        parts = []
        for members in known.members:
            own = None if metric is None else metric[members]
            sizes = tuple(range(1, min(kernel.most_columns, len(members)) + 1))
            scaler = chosen_scaler(feature_map.scaler, members)
            parts.append(ColumnKernels(kernel, projection.landmarks[:, members], scaler, own, members, sizes))
        coef = projection.whitening @ (scorer.coef * feature_map.amplitudes).T
        return cls(tuple(parts), kernel.weights(projection.n_columns), coef)

    @property
    def n_functions(self) -> int:
        """The number of functions of single columns: for each column and size one for each landmark."""
        return sum(len(part.sizes) for part in self.parts) * len(self.coef)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The functions at unscaled dense rows (n, d): (n, U), in the memory order of the transpose.

        All functions of the first column come first. Those of a column begin with the kernels summed over its encoded
        columns, one for each landmark; sums of products over pairs of encoded columns follow, then over triples.
        """
        return np.concatenate([part.sums(rows[:, part.columns]).reshape(-1, len(rows)) for part in self.parts]).T

    def terms(self, means: np.ndarray, most_columns: int) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
        """The terms of each effect, as in `StepFactors.terms`.

        With g_cr the function of column c for sets of r of its encoded columns, and psi_cr its mean, the term of
        columns T and sizes r_c is ``prod_{c in T} (g_cr - psi_cr)``. Its coefficient is a times the weights of all sets
        that extend T by other columns, times the means of these.
        """
        q, n_landmarks = len(self.weights) - 1, len(self.coef)
        of_column = np.split(means.reshape(-1, n_landmarks), np.cumsum([len(part.sizes) for part in self.parts])[:-1])
        starts = np.cumsum([0, *(psi.size for psi in of_column)])
        every = {}
        for number in range(1, min(most_columns, q) + 1):
            for columns in combinations(range(len(self.parts)), number):
                others = [psi for c, psi in enumerate(of_column) if c not in columns] if number < q else []
                left = self._left(others, q - number, most_columns - number)
                numbers, coefficients = [], []
                for sizes in product(*(self.parts[c].sizes for c in columns)):
                    if (taken := sum(sizes)) <= q:
                        # sums over the sets that extend this one by other columns, with weights of their total sizes
                        share = self.weights[taken:] @ left[: q + 1 - taken]
                        coefficients.append(share[:, None] * self.coef)
                        first = starts[list(columns)] + n_landmarks * (np.array(sizes) - 1)
                        numbers.append(first + np.arange(n_landmarks)[:, None])
                every[columns] = np.concatenate(numbers), np.concatenate(coefficients)
        return every

    def of_column(self, column: int, numbers: np.ndarray, known: Columns) -> ColumnKernels:
        """The given functions, all of one column and each of all landmarks, as functions of its encoded columns."""
        before = sum(len(part.sizes) for part in self.parts[:column])
        sizes = numbers[:: len(self.coef)] // len(self.coef) - before + 1
        return replace(self.parts[column], sizes=tuple(sizes.tolist()))

    def _left(self, others: list[np.ndarray], most_size: int, most_columns: int) -> np.ndarray:
        """For s = 0, 1, ...: the sum over sets of s encoded columns of at most `most_columns` others of their means."""
        # sums by the number of columns in a set, and by its size
        sums = np.zeros((most_columns + 1, most_size + 1, len(self.coef)))
        sums[0, 0] = 1.0
        for psi in others:
            for number in range(most_columns, 0, -1):
                for size in range(most_size, 0, -1):
                    for r in range(1, min(size, len(psi)) + 1):
                        sums[number, size] += sums[number - 1, size - r] * psi[r - 1]
        total: np.ndarray = sums.sum(axis=0)
        return total
