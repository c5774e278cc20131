"""A family whose frequencies each move in few columns: main effects and interactions of a few columns at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.families import Cauchy, Gaussian, Laplacian
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.projections import DenseProjection

ProductFamily = Gaussian | Laplacian | Cauchy


@dataclass(frozen=True)
class SparseFrequencies:
    """Each entry of a frequency is kept with probability `share`, given that one at least is.

    With p the share and k_c the family's kernel on column c,
    k(x, y) = (prod_c (1 - p + p k_c(x_c, y_c)) - (1 - p)^d) / (1 - (1 - p)^d), a sum over all sets of columns as in the
    additive kernels of Duvenaud, Nickisch & Rasmussen 2011, equation (8). Where columns act by themselves or in pairs,
    it needs fewer rows, and fewer frequencies, than a kernel of all columns at once.

    Parameters
    ----------
    family : Gaussian, Laplacian or Cauchy
        With sampling="iid". Its sigma is the bandwidth of each column that is kept.
    share : float
        In (0, 1]; 1 is the family itself.

    Raises
    ------
    TypeError
        By `validate`, if the kernel of the family is not a product over columns.
    ValueError
        By `validate`, if the share or a parameter of the family has no meaning.

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

    @property
    def needs_bandwidth(self) -> bool:
        return self.family.needs_bandwidth

    def validate(self) -> None:
        if not isinstance(self.family, ProductFamily):
            raise TypeError(
                f"SparseFrequencies: family is {self.family!r}, whose kernel is not a product over columns; use "
                "Gaussian, Laplacian or Cauchy"
            )
        if not (isinstance(self.share, Real) and 0.0 < self.share <= 1.0):
            raise ValueError(f"SparseFrequencies: share is {self.share!r}; it must lie in (0, 1]")
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
        # The entries are drawn as the family draws them, then most are set to 0: a frequency of `share` = 1 is the
        # family's own.
        W = np.where(self._kept(whole.n_frequencies, n_columns, seed), whole.projection.dense(), 0)
        return replace(whole, projection=DenseProjection(W.astype(dtype)))

    def feature_scale(self, n_columns: int) -> float:
        return self.family.feature_scale(n_columns)

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        X, Y = np.atleast_2d(X), np.atleast_2d(X if Y is None else Y)
        # The product over columns is a sum over all sets of columns; the empty set, which no frequency has, is taken
        # out.
        none = (1.0 - self.share) ** X.shape[1]
        product = np.ones((len(X), len(Y)))
        for c in range(X.shape[1]):
            product *= 1.0 - self.share + self.share * self.family.kernel(X[:, c : c + 1], Y[:, c : c + 1])
        return (product - none) / (1.0 - none)

    def _kept(self, n_frequencies: int, n_columns: int, seed: int) -> np.ndarray:
        """Which entries stay: the first by its own law, those behind it independently; no row depends on later ones."""
        places = np.arange(n_columns)
        uniform = stream(seed, "columns").random((n_frequencies, n_columns + 1))
        # The first kept entry stands at place c with probability p (1 - p)^c, given that there is one: its distribution
        # function, inverted by a uniform number.
        first_up_to = -np.expm1((places + 1) * np.log1p(-self.share)) if self.share < 1.0 else np.ones(n_columns)
        first = np.searchsorted(first_up_to / first_up_to[-1], uniform[:, 0], side="right")[:, None]
        return (places == first) | ((places > first) & (uniform[:, 1:] < self.share))
