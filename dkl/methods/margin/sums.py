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
from dkl.kernels.newton.gram import rows_at, signed_products, summed_product
from dkl.kernels.normal_equations import design_tiles
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import Loss

__all__ = ["corrective_sums", "gram_weights"]

# Changed rows of several tiles that are collected for one product, at most; the changed rows of one tile always are.
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
        Gram sums weight the rows by their curvature (of the single model), as a share of the loss's largest one; else
        by their own weights alone.
    previous : ndarray of shape (1, width) or None
        The model whose curvatures weight the known Gram matrix of the old columns; None if no matrix is known.
    panels : tuple of (int, int)
        Ranges of rows of that matrix's upper triangle whose change is summed; empty where it cannot change.
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
    """Weights (n,) times curvatures (n, 1), as a share of the largest one."""
    # of the squared hinge 1 within the margin and 0 beyond: a Newton step needs the active rows alone
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
        As `dkl.methods.rounds.sums.HeldTargets` returns them; of rows on a GPU they may be there, in any dtype.
    feature_map : FeatureMap
        Chosen frequencies, then candidates.
    round_ : CorrectiveRound

    Returns
    -------
    dict of ndarray
        With s minus the slope of a row's loss, its dual weight: "gradient" (K, width): sum s phi. "loss", "dual",
        "curvature", "absolutes", "squares", "support" (K,): of the loss, of minus its conjugate, of its curvature, of
        |s|, s^2 and rows with s != 0. "held_out" (2,): loss of the rows held out, summed over models, and their weight.
        "cross" (width, new): Gram columns of the candidates, by `gram_weights` or the rows' weights. "change_0", ...:
        what has to be added to the Gram matrix of the old columns.
    """
    loss = round_.loss
    change = _GramChange(round_)
    sums: dict[str, Any] = {}
    for rows, phi in design_tiles(X, feature_map, round_.dtype):
        xp = array_module(phi)
        # on a GPU all of a tile is computed there, so that the host waits once a block
        y, weight, held_out = (part[rows] if xp is np else xp.asarray(part[rows], np.float64) for part in targets)
        scores = _scores(phi, round_.coefficients)
        # A mean exp(f) that overflows is one of a step too long: the round that sees its loss takes half of it.
        with np.errstate(over="ignore"):
            losses, slopes, bends, conjugates = loss.parts(y, scores)
        # s = -loss'(y, f): the dual weight of a row, sign included, whose potential is searched for peaks
        duals = -slopes
        weighted = weight[:, None] * duals
        # what each row counts in the Gram sums: by its curvature where these follow one model
        used = _by_curvature(weight, bends, loss) if round_.active else weight
        counted, shares = phi, used[:, None].astype(phi.dtype)
        if xp is np and len(counting := np.flatnonzero(used)) < len(phi):
            # which rows count is not known on a GPU without a wait: there the others have weight 0
            counted, shares = rows_at(phi, counting), shares[counting]
        tile = {
            "gradient": _weighted_rows(weighted.T, phi),
            "loss": weight @ losses,
            # Fenchel's dual of the loss at this slope
            "dual": -(weight @ conjugates),
            "curvature": weight @ bends,
            "absolutes": abs(weighted).sum(axis=0),
            # a row of weight w is w rows, each of which meets itself
            "squares": weight @ duals**2,
            "support": weight @ (duals != 0.0),
            "held_out": xp.stack([(held_out @ losses).sum(), held_out.sum()]),
            # sum over rows of used phi phi_new^T: Gram columns of the candidates
            "cross": _product(counted.T, xp.take(counted, xp.asarray(round_.new), axis=1) * shares),
        }
        change.add(phi, y, weight, used)
        # tiles are added in float64, whatever they were formed in; sums of a GPU stay there until the last one
        for name, value in tile.items():
            if name in sums:
                sums[name] += value
            else:
                sums[name] = value.astype(np.float64)
    return together_on_host({**sums, **change.sums()})


def _scores(phi: Any, models: np.ndarray) -> Any:
    """The scores (n, K), where the rows are, of models (K, m + 1) on rows of the design matrix."""
    if is_on_gpu(phi):
        # the last column of the design matrix has the intercepts
        return scores_on_gpu(phi, array_module(phi).asarray(np.column_stack([models, np.zeros(len(models))])))
    return (phi @ models.T.astype(phi.dtype)).astype(np.float64)


def _weighted_rows(weights: Any, phi: Any) -> Any:
    """Sums of rows of the design matrix by weights (K, n), where the rows are."""
    if is_on_gpu(phi):
        return weighted_rows_on_gpu(weights, phi)
    return product(weights.astype(phi.dtype), phi)


def _product(left: Any, right: Any) -> Any:
    """The product of two matrices where they are."""
    return summed_product(left, right) if is_on_gpu(left) else product(left, right)


def corrective_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`corrective_sums` of a block. Operands: "feature_map", "round", "targets" (a `HeldTargets`)."""
    targets = beside_rows(block, "corrective round", operands["targets"])
    return corrective_sums(block.X, targets, operands["feature_map"], operands["round"])


class _GramChange:
    """The change of the Gram matrix of the old columns since `previous`: rows that came in, less those that went.

    Few rows of a tile have changed, and every product is as large as the matrix: rows of several tiles share one.
    """

    def __init__(self, round_: CorrectiveRound) -> None:
        self._round, n = round_, len(round_.old)
        self._totals: list[Any] = [np.zeros((stop - start, n - start)) for start, stop in round_.panels]
        self._rows: list[Any] = []
        self._weights: list[Any] = []

    def add(self, phi: Any, y: Any, weight: Any, used: Any) -> None:
        """Take the rows of a tile of which another weight is `used` than before."""
        if not self._totals:
            return
        xp = array_module(phi)
        # the weight under the model at which the matrix is known: 0 where it is not, so that all rows come in
        before = xp.zeros_like(used)
        if self._round.previous is not None:
            before = gram_weights(_scores(phi, self._round.previous), y, weight, self._round.loss)
        change = used - before
        if xp is not np:
            # which rows have changed is not known there without a wait: all of the tile are multiplied
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
        """A panel of the matrix each, where the rows are: "change_0", ..."""
        self._multiply()
        return {f"change_{j}": total for j, total in enumerate(self._totals)}

    def _multiply(self) -> None:
        """Add the outer products of the rows that were taken, by their change of weight, and forget them."""
        if not self._rows:
            return
        xp = array_module(self._rows[0])
        phi, weight = xp.concat(self._rows), xp.concat(self._weights)
        self._rows, self._weights = [], []
        # products are formed where the rows are; sums on a GPU stay there
        self._totals = [xp.asarray(total) for total in self._totals]
        if len(self._totals) == 1:
            # one symmetric product, of half the cost: rows that came in less those that went
            self._totals[0] += signed_products(phi, weight)
            return
        weighted = phi * xp.asarray(weight.astype(phi.dtype))[:, None]
        for total, (start, stop) in zip(self._totals, self._round.panels, strict=True):
            total += _product(weighted[:, start:stop].T, phi[:, start:])
