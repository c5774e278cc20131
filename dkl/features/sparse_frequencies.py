"""A family whose frequencies depend on few columns each: main effects, and interactions of a few columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import DTypeLike
from scipy import special

from dkl.features.families import Bandwidth, Cauchy, Gaussian, Laplacian, is_count
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.projections import DenseProjection

ProductFamily = Gaussian | Laplacian | Cauchy


@dataclass(frozen=True)
class SparseFrequencies:
    """Frequencies with few nonzero entries: each is kept with probability `share`, given that at least one is.

    With p the share and k_c the family's kernel on column c,
    k(x, y) = (prod_c (1 - p + p k_c(x_c, y_c)) - (1 - p)^d) / (1 - (1 - p)^d), a sum over all sets of columns as in the
    additive kernels of Duvenaud, Nickisch & Rasmussen 2011, equation (8). Where columns act by themselves or in pairs,
    it needs fewer rows, and fewer frequencies, than a kernel of all columns at once.

    With ``most_columns=q`` no more than q entries are kept: k(x, y) = sum_s w_s e_s(x, y) over s = 1, ..., q with e_s
    the sum over all sets of s columns of the products of their k_c, and w_s proportional to p^s (1 - p)^(d - s). Every
    function of such a kernel is a sum of functions of at most q columns, which `dkl.explain.effects` tells apart:
    ``NystromFeatures(SparseFrequencies(Laplacian(1.0), most_columns=2), scaling="quantile")`` is a model of shapes and
    pairs.

    Parameters
    ----------
    family : Gaussian, Laplacian or Cauchy
        With sampling="iid". Its sigma is the bandwidth in each column.
    share : float
        In (0, 1]; 1 is the family itself. With most_columns=2 and a share of 2 / (d + 1), single columns together have
        the weight of pairs.
    most_columns : int or None
        The largest number of nonzero entries of a frequency; None is no bound.

    Raises
    ------
    TypeError
        By `validate`, if the kernel of the family is not a product over columns.
    ValueError
        By `validate`, if a parameter, or one of the family, has no meaning.

    Examples
    --------
    >>> from dkl.features.families import Gaussian
    >>> from dkl.features.sparse_frequencies import SparseFrequencies
    >>> family = SparseFrequencies(Gaussian(sigma=2.0), share=0.2)
    >>> kept = family.draw(1000, n_columns=10, seed=0).projection.dense() != 0
    >>> bool(kept.any(axis=1).all()), round(float(kept.sum(axis=1).mean()), 1)
    (True, 2.2)
    """

    family: ProductFamily
    share: float = 0.3
    most_columns: int | None = None

    @property
    def needs_bandwidth(self) -> bool:
        return self.family.needs_bandwidth

    @property
    def sigma(self) -> Bandwidth:
        """The bandwidth in each column."""
        return self.family.sigma

    def validate(self) -> None:
        if not isinstance(self.family, ProductFamily):
            raise TypeError(
                f"SparseFrequencies: family is {self.family!r}, whose kernel is not a product over columns; use "
                "Gaussian, Laplacian or Cauchy"
            )
        if not (isinstance(self.share, Real) and 0.0 < self.share <= 1.0):
            raise ValueError(f"SparseFrequencies: share is {self.share!r}; it must lie in (0, 1]")
        if self.most_columns is not None and not is_count(self.most_columns):
            raise ValueError(
                f"SparseFrequencies: most_columns is {self.most_columns!r}; it must be a whole number from 1 on, or "
                "None"
            )
        if self.most_columns is not None and self.share == 1.0:
            raise ValueError(
                f"SparseFrequencies: share=1.0 keeps every entry, and most_columns={self.most_columns} few; use a "
                "share below 1"
            )
        if self.family.sampling != "iid":
            raise ValueError(
                f"SparseFrequencies: sampling is {self.family.sampling!r}, which few columns undo; use 'iid'"
            )
        self.family.validate()

    def with_bandwidth(self, sigma: float) -> SparseFrequencies:
        return replace(self, family=self.family.with_bandwidth(sigma))

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        self.validate()
        whole = self.family.draw(n_frequencies, n_columns, seed, dtype)
        # The family draws all entries, and those not kept are set to 0: share=1 gives the family's own frequencies.
        W = np.where(self._kept(whole.n_frequencies, n_columns, seed), whole.projection.dense(), 0)
        return replace(whole, projection=DenseProjection(W.astype(dtype)))

    def feature_scale(self, n_columns: int) -> float:
        return self.family.feature_scale(n_columns)

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        X, Y = np.atleast_2d(X), np.atleast_2d(X if Y is None else Y)
        columns = (self.family.kernel(X[:, c : c + 1], Y[:, c : c + 1]) for c in range(X.shape[1]))
        if self.most_columns is not None:
            weights = self.weights(X.shape[1])
            sums = symmetric_sums(columns, len(weights) - 1, (len(X), len(Y)))
            total = np.zeros((len(X), len(Y)))
            for weight, of_size in zip(weights[1:], sums[1:], strict=True):
                total += weight * of_size
            return total
        # The product over columns is a sum over all sets of columns; the term of the empty set is subtracted, since
        # every frequency has at least one entry.
        none = (1.0 - self.share) ** X.shape[1]
        product = np.ones((len(X), len(Y)))
        for column in columns:
            product *= 1.0 - self.share + self.share * column
        return (product - none) / (1.0 - none)

    def weights(self, n_columns: int) -> np.ndarray:
        """w_0 = 0, w_1, ..., w_q: the probability of each single set of s columns, its weight in the kernel."""
        most = n_columns if self.most_columns is None else min(self.most_columns, n_columns)
        sizes = np.arange(most + 1)
        # in logarithms, since with many columns each probability is tiny
        logs = sizes * np.log(self.share) + (n_columns - sizes) * np.log1p(-self.share)
        logs[0] = -np.inf
        chances = np.exp(logs - logs[1:].max())
        every: np.ndarray = chances / (chances * special.comb(n_columns, sizes)).sum()
        return every

    def _kept(self, n_frequencies: int, n_columns: int, seed: int) -> np.ndarray:
        """The entries that are kept, (m, d) bool; rows do not depend on later rows."""
        places = np.arange(n_columns)
        uniform = stream(seed, "columns").random((n_frequencies, n_columns + 1))
        if self.most_columns is not None:
            # First the number of entries, by inverting its distribution function; then the entries that have the
            # smallest uniform numbers.
            weights = self.weights(n_columns)
            up_to = np.cumsum(weights * special.comb(n_columns, np.arange(len(weights))))
            sizes = np.searchsorted(up_to / up_to[-1], uniform[:, 0], side="right")
            return np.asarray(uniform[:, 1:].argsort(axis=1).argsort(axis=1) < sizes[:, None])
        # The first kept entry has the place c with probability p (1 - p)^c, given that there is one; it is drawn by
        # inverting its distribution function. Later entries are kept independently.
        first_up_to = -np.expm1((places + 1) * np.log1p(-self.share)) if self.share < 1.0 else np.ones(n_columns)
        first = np.searchsorted(first_up_to / first_up_to[-1], uniform[:, 0], side="right")[:, None]
        return (places == first) | ((places > first) & (uniform[:, 1:] < self.share))


def symmetric_sums(columns: Iterable[np.ndarray], most: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """e_0 = 1, e_1, ..., e_most: the sums over all sets of s columns of the products of their arrays.

    Parameters
    ----------
    columns : iterable of ndarray
        An array for each column; read once.
    most : int
        The largest s.
    shape : tuple of int
        The shape of each array.
    """
    sums = [np.ones(shape), *(np.zeros(shape) for _ in range(most))]
    for column in columns:
        # from the largest s down, so that sums[size - 1] does not contain this column yet
        for size in range(most, 0, -1):
            sums[size] += sums[size - 1] * column
    return sums
