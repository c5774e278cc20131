"""Block functions of peaks of the targets' potential: weight columns of rows, and sums of waves over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.kernels.device import together_on_host, with_targets
from dkl.kernels.nufft import grid_sums, scattered_sums, variation_sums
from dkl.kernels.scale import scale_rows
from dkl.kernels.sums import encode_targets, feature_sums
from dkl.protocols.block import Block
from dkl.solvers.losses import namespace_of


@dataclass(frozen=True, eq=False)
class PeakTargets:
    """The weight columns S of rows, whose potential is searched for peaks; each sums to 0 over all rows.

    Parameters
    ----------
    n_classes : int or None
        None for regression.
    class_weight : ndarray of shape (K,) or None
        Factors of the rows' weights.
    center : ndarray of shape (K,) or (t,)
        The share of each class in the total weight, or the mean of each target.
    scale : ndarray of shape (t,) or None
        The standard deviation of each target; None divides by nothing.
    """

    n_classes: int | None
    class_weight: np.ndarray | None
    center: np.ndarray
    scale: np.ndarray | None = None

    @property
    def n_columns(self) -> int:
        """The number of columns of S: one for two classes, whose potentials are equal."""
        return 1 if self.n_classes == 2 else len(self.center)

    def __call__(self, block: Block) -> np.ndarray:
        """S of a block's rows, (n_b, K), including their weights, on the device of the block's targets."""
        encoded, xp = encode_targets(block, self.n_classes, self.class_weight), namespace_of(block.y)
        center = xp.asarray(self.center)
        if self.n_classes is None:
            centred = encoded[:, :-1] - center * encoded[:, -1:]
            return centred if self.scale is None else centred / xp.asarray(self.scale)
        # 1{y_i = k} minus the share of class k, so that the potential at frequency 0, which carries no information, is
        # 0
        centred = encoded - center * encoded.sum(axis=1, keepdims=True)
        return centred[:, : self.n_columns]


def peak_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of the candidates' features with the weight columns S, and of |S| and of its squares, over a block.

    A row of weight w counts as w rows, each of which is paired with itself: its square is S^2 / w.
    """
    targets: PeakTargets = operands["targets"]
    targeted = with_targets(block)
    S = targets(targeted)
    features = feature_sums(block.X, S, operands["feature_map"], dtype=operands["dtype"], stay=True)
    squares = (S**2 / targeted.weights[:, None]).sum(axis=0)
    return together_on_host({"features": features, "absolutes": abs(S).sum(axis=0), "squares": squares})


def cell_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of exp(i w.x) over a block at the first grid (operand "cells" is None) or at the centres of other cells.

    Operands: "problem" (a `GridProblem`), "cells".
    """
    problem = operands["problem"]
    X, S = scale_rows(block.X, problem.origin.scaler, "float64"), problem.targets(block)
    if operands["cells"] is not None:
        return {"features": scattered_sums(X, S, operands["cells"], problem.center)}
    variation = variation_sums(X, S, problem.grid.spacing / 2.0, problem.center)
    return {"features": grid_sums(X, S, problem.grid), "variation": variation, "absolutes": np.abs(S).sum(axis=0)}
