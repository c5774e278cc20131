"""Block functions of fully corrective rounds: the working model's dual, potentials of candidates, Gram columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.blas import product
from dkl.kernels.device import (
    array_module,
    beside_rows,
    is_on_gpu,
    scores_on_gpu,
    together_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.maps import design_tiles
from dkl.kernels.newton.gram import rows_at, signed_products, summed_product
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import Loss

__all__ = ["corrective_sums", "gram_weights"]

# The most changed rows that are collected over several tiles for one product; those of one tile always are.
_CHANGED_ROWS = 1024


@dataclass(frozen=True, eq=False)
class CorrectiveRound:
    """The working model of a round, in the columns of a map that also has the candidates.

    Parameters
    ----------
    loss : Loss
    coefficients : ndarray of shape (K, width), float64
        The intercept last; 0 for the candidates.
    old, new : ndarray of int64
        The columns of the working model, intercept included, and the columns of the candidates.
    active : bool
        Whether Gram sums weight rows by the curvature of the single model, relative to the loss's largest one;
        otherwise only by their own weights.
    previous : ndarray of shape (1, width) or None
        The model whose curvatures weight the present Gram matrix of the old columns; None before it was summed.
    panels : tuple of (int, int)
        Ranges of rows of this matrix's upper triangle whose change is summed; empty if it is constant.
    dtype : {"float32", "float64"}
        Of mapped rows and products.
    """

    loss: Loss
    coefficients: np.ndarray
    old: np.ndarray
    new: np.ndarray
    active: bool
    previous: np.ndarray | None = None
    panels: tuple[tuple[int, int], ...] = ()
    dtype: str = "float32"


def gram_weights(scores: np.ndarray, targets: np.ndarray, weight: np.ndarray, loss: Loss) -> np.ndarray:
    """The weights of rows in the Gram sums of a single model, (n,): weight times curvature / largest curvature."""
    return _by_curvature(weight, loss.curvature(targets, scores), loss)


def _by_curvature(weight: Any, curvature: Any, loss: Loss) -> Any:
    """Weights (n,) times curvatures (n, 1) relative to the largest one."""
    # for the squared hinge 1 within the margin and 0 beyond: a Newton step only needs the active rows
    return weight * (curvature[:, 0] / loss.largest_curvature)


def corrective_sums(
    X: Rows,
    targets: tuple[Any, ...],
    feature_map: FeatureMap,
    round_: CorrectiveRound,
) -> dict[str, np.ndarray]:
    """The sums of a round over rows X.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    targets : tuple
        As returned by `dkl.methods.rounds.sums.HeldTargets`; for rows on a GPU they may be there, in any dtype.
    feature_map : FeatureMap
        Chosen frequencies, then candidates.
    round_ : CorrectiveRound

    Returns
    -------
    dict of ndarray
        s is minus the slope of a row's loss, its dual weight. "gradient" (K, width): sum s phi. "loss", "dual",
        "curvature", "absolutes", "squares", "support" (K,): sums of the loss, of minus its conjugate, of its curvature,
        of |s|, of s^2, and of the rows with s != 0. "held_out" (2,): loss of held-out rows, summed over models, and
        their weight. "cross" (width, new): Gram columns of the candidates, weighted by `gram_weights` or the rows'
        weights. "change_0", ...: the change of the Gram matrix of the old columns.
    """
    loss = round_.loss
    change = _GramChange(round_)
    sums: dict[str, Any] = {}
    for rows, phi in design_tiles(X, feature_map, round_.dtype):
        xp = array_module(phi)
        # on a GPU everything is computed there, so that the host waits once for each block
        y, weight, held_out = (part[rows] if xp is np else xp.asarray(part[rows], np.float64) for part in targets)
        scores = _scores(phi, round_.coefficients)
        # a step that is too long may make a mean exp(f) infinite; the round that evaluates this loss halves the step
        with np.errstate(over="ignore"):
            losses, slopes, curvatures, conjugates = loss.parts(y, scores)
        # s = -loss'(y, f): the signed dual weight of a row, whose potential is searched for peaks
        duals = -slopes
        weighted = weight[:, None] * duals
        # the weights of rows in the Gram sums, by curvature if there is one model
        used = _by_curvature(weight, curvatures, loss) if round_.active else weight
        counted, shares = phi, used[:, None].astype(phi.dtype)
        if xp is np and len(counting := np.flatnonzero(used)) < len(phi):
            # on a GPU, finding the rows with weight would wait for it, so the others stay with weight 0
            counted, shares = rows_at(phi, counting), shares[counting]
        tile = {
            "gradient": _weighted_rows(weighted.T, phi),
            "loss": weight @ losses,
            # the dual of the loss at this slope
            "dual": -(weight @ conjugates),
            "curvature": weight @ curvatures,
            "absolutes": abs(weighted).sum(axis=0),
            # a row of weight w stands for w rows, each paired with itself
            "squares": weight @ duals**2,
            "support": weight @ (duals != 0.0),
            "held_out": xp.stack([(held_out @ losses).sum(), held_out.sum()]),
            # sum over rows of used phi phi_new^T: Gram columns of the candidates
            "cross": summed_product(counted.T, xp.take(counted, xp.asarray(round_.new), axis=1) * shares),
        }
        change.add(phi, y, weight, used)
        # tiles are added in float64; sums on a GPU stay there until the end
        for name, value in tile.items():
            if name in sums:
                sums[name] += value
            else:
                sums[name] = value.astype(np.float64)
    return together_on_host({**sums, **change.sums()})


def _scores(phi: Any, models: np.ndarray) -> Any:
    """The scores (n, K) of models (K, m + 1) on rows of the design matrix, on their device."""
    if is_on_gpu(phi):
        # the last column of the design matrix belongs to the intercepts
        return scores_on_gpu(phi, array_module(phi).asarray(np.column_stack([models, np.zeros(len(models))])))
    return (phi @ models.T.astype(phi.dtype)).astype(np.float64)


def _weighted_rows(weights: Any, phi: Any) -> Any:
    """Sums of rows of the design matrix with weights (K, n), on their device."""
    if is_on_gpu(phi):
        return weighted_rows_on_gpu(weights, phi)
    return product(weights.astype(phi.dtype), phi)


def corrective_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`corrective_sums` of a block. Operands: "feature_map", "round", "targets" (a `HeldTargets`)."""
    targets = beside_rows(block, "corrective round", operands["targets"])
    return corrective_sums(block.X, targets, operands["feature_map"], operands["round"])


class _GramChange:
    """Collects the change of the Gram matrix of the old columns since the model `previous`.

    Few rows of a tile change, while each product has the size of the matrix: rows of several tiles share one product.
    """

    def __init__(self, round_: CorrectiveRound) -> None:
        self._round, n = round_, len(round_.old)
        self._totals: list[Any] = [np.zeros((stop - start, n - start)) for start, stop in round_.panels]
        self._rows: list[Any] = []
        self._weights: list[Any] = []

    def add(self, phi: Any, y: Any, weight: Any, used: Any) -> None:
        """Collect the rows of a tile whose weight `used` has changed."""
        if not self._totals:
            return
        xp = array_module(phi)
        # the weight under the previous model; 0 without one, so that all rows are added
        before = xp.zeros_like(used)
        if self._round.previous is not None:
            before = gram_weights(_scores(phi, self._round.previous), y, weight, self._round.loss)
        change = used - before
        if xp is not np:
            # finding the changed rows would wait for the GPU, so all rows of the tile are multiplied
            self._rows.append(xp.take(phi, xp.asarray(self._round.old), axis=1))
            self._weights.append(change)
            self._multiply()
            return
        rows = np.flatnonzero(change)
        if sum(map(len, self._weights)) + len(rows) > _CHANGED_ROWS:
            self._multiply()
        if len(rows):
            self._rows.append(np.take(rows_at(phi, rows), self._round.old, axis=1))
            self._weights.append(change[rows])

    def sums(self) -> dict[str, Any]:
        """The change as panels of the matrix: "change_0", ..., on the device of the rows."""
        self._multiply()
        return {f"change_{j}": total for j, total in enumerate(self._totals)}

    def _multiply(self) -> None:
        """Add the outer products of the collected rows, weighted by their changes, and clear them."""
        if not self._rows:
            return
        xp = array_module(self._rows[0])
        phi, weight = xp.concat(self._rows), xp.concat(self._weights)
        self._rows, self._weights = [], []
        # products are computed on the device of the rows; sums on a GPU stay there
        self._totals = [xp.asarray(total) for total in self._totals]
        if len(self._totals) == 1:
            # one symmetric product, at half the cost, with signs for added and removed rows
            self._totals[0] += signed_products(phi, weight)
            return
        weighted = phi * xp.asarray(weight.astype(phi.dtype))[:, None]
        for total, (start, stop) in zip(self._totals, self._round.panels, strict=True):
            total += summed_product(weighted[:, start:stop].T, phi[:, start:])
