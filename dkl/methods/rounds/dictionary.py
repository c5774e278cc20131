"""What rounds ask of a dictionary: columns that it proposes on a sample, as points that a pass verifies on all rows."""

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
    """Columns that rounds may take, each with a point: a row of an array of shape (p, d).

    Rounds propose points on a sample of the rows, verify their columns in the pass over all rows, and take those whose
    Newton step, beside the columns of the model so far, lowers the objective most, whatever dictionary they are of.
    """

    @property
    def columns_a_point(self) -> int:
        """Columns of one point: two for cosine-sine pairs."""
        ...

    @property
    def scaler(self) -> Scaler | None:
        """That of the rows which `unit` and `propose` are given; None for rows as they come."""
        ...

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The columns of points, amplitudes 1."""
        ...

    def unit(self, X: Rows) -> float:
        """The amplitude at which columns deviate about as much as steps on scaled rows X: one ridge suits all."""
        ...

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """At most `count` points that are worth much on these rows."""
        ...
