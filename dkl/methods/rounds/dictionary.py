"""The contract of a dictionary: it proposes columns on a sample of the rows, as points that a pass verifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.protocols.arrays import Rows


@dataclass(frozen=True, eq=False)
class SampleSlopes:
    """The rows of a search, scaled, with the working model's slopes there.

    Parameters
    ----------
    X : ndarray or csr_array of shape (r, d)
    s : ndarray of shape (r, K), float64
        Weighted negative slopes of the rows' losses.
    h : ndarray of shape (r,), float64
        Weighted curvatures.
    """

    X: Rows
    s: np.ndarray
    h: np.ndarray


class Dictionary(Protocol):
    """A set of columns that rounds may choose from, each given by a point: a row of an array of shape (p, d).

    d is the number of the rows' columns, for all dictionaries, whose points are stacked.

    Points are proposed on a sample of the rows and verified in a pass over all rows. The points of all dictionaries
    compete: those are added whose Newton step, given the columns of the model so far, lowers the objective most.
    """

    @property
    def columns_a_point(self) -> int:
        """Columns of one point: two for cosine-sine pairs."""
        ...

    @property
    def scaler(self) -> Scaler | None:
        """The scaler of the rows in `unit` and `propose`; None for unscaled rows."""
        ...

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The feature map of points, with amplitudes 1."""
        ...

    def unit(self, X: Rows) -> float:
        """The amplitude at which columns on scaled rows X vary about as much as steps, so that one ridge suits all."""
        ...

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """At most `count` points whose columns lower the loss most on these rows."""
        ...
