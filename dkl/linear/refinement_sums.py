"""The gradient of a loss in the frequencies and weights of a Fourier expansion, over a batch of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection, Projection, SparseProjection
from dkl.kernels import generic
from dkl.kernels.compiled import njit
from dkl.kernels.device import array_module, arrived, is_on_gpu, place, sent, with_targets
from dkl.kernels.sincos import ELEMENTWISE, TURN, cos_sin_rows
from dkl.kernels.tiles import RowTiles, checked_dtype, spans
from dkl.linear.minibatches import shuffled_rows
from dkl.protocols.arrays import dense_rows, stacked
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of

RefinedLoss = Literal["squared_hinge", "log_loss", "squared_error"]
# The losses with a gradient everywhere, which the descent needs.
REFINED_LOSSES: tuple[RefinedLoss, ...] = get_args(RefinedLoss)

# Frequencies computed on at once: a dense W, and the gradient in all its columns, exist only for these.
_FREQUENCIES = 512

_MINIBATCH_BYTES, _MINIBATCH_ROWS = 1 << 24, 4096


def check_fourier(feature_map: FeatureMap) -> None:
    """Raise ValueError unless the features are cosines or sines."""
    if not feature_map.is_fourier:
        raise ValueError(
            f"gradients in the frequencies are defined for 'cos-sin' and 'cos' maps, and these are "
            f"{feature_map.activation!r} features; learn Fourier features, such as RandomFeatures(Gaussian())"
        )


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """Scaled rows at which gradients are computed.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), or CuPy array
        Scaled, and divided by 2 pi, so that angles are in turns.
    constant : ndarray of shape (d,) or None
        Still to be subtracted from every row: the centre, which would make sparse rows dense.
    """

    X: np.ndarray | sparse.csr_array
    constant: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return int(self.X.shape[0])

    def rows(self, index: slice) -> ScaledRows:
        """A part of the rows."""
        # `dataclasses.replace` takes a twentieth of a step on 64 rows
        return ScaledRows(self.X[index], self.constant)


@dataclass(frozen=True, eq=False)
class Expansion:
    """f_k(x) = sum_j coef[k, j] phi_j(x) + intercept[k], with all its numbers as arrays for gradient steps.

    Parameters
    ----------
    entries : ndarray of shape (m, d) or (nnz,)
        W, or if it is sparse its stored entries; the others stay 0.
    coef : ndarray of shape (K, n_features)
    intercept : ndarray of shape (K,)
    """

    entries: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray

    @classmethod
    def of(cls, feature_map: FeatureMap, coef: np.ndarray, intercept: np.ndarray, dtype: str) -> Expansion:
        """The expansion of a linear model on mapped rows.

        Raises
        ------
        ValueError
            If the features are not cosines and sines, or the model has another number of coefficients.
        """
        check_fourier(feature_map)
        coef, intercept = np.atleast_2d(coef), np.atleast_1d(intercept)
        if coef.shape != (len(intercept), feature_map.n_features):
            raise ValueError(
                f"coef has shape {coef.shape} and intercept {intercept.shape}; a map of {feature_map.n_features} "
                f"features needs (K, {feature_map.n_features}) and (K,)"
            )
        number = checked_dtype(dtype)
        return cls(*(part.astype(number) for part in (_entries(feature_map.projection), coef, intercept)))

    def apply_to(self, feature_map: FeatureMap) -> FeatureMap:
        """The feature map with these frequencies in place of its own, and the same phases and amplitudes."""
        projection = feature_map.projection
        if isinstance(projection, SparseProjection):
            return replace(feature_map, projection=replace(projection, data=self.entries))
        return replace(feature_map, projection=DenseProjection(self.entries))


def scaled_rows(X: np.ndarray | sparse.csr_array, feature_map: FeatureMap, dtype: str = "float32") -> ScaledRows:
    """Raw rows, scaled for `ExpansionGradients`; sparse rows stay sparse if their scaling allows it.

    Rows on a GPU stay there, and become dense.
    """
    if is_on_gpu(X):
        scaled = generic.scaled(array_module(X), dense_rows(X), feature_map.scaler, np.float64)
        return ScaledRows((scaled * TURN).astype(dtype))
    tiles = RowTiles(X, feature_map, checked_dtype(dtype), factor=TURN)
    X = stacked([tile for _, tile in tiles])
    constant = None if tiles.constant is None else tiles.constant.astype(dtype)
    return ScaledRows(X, constant)


class ExpansionGradients:
    """The gradient of the regularised loss of a batch, in frequencies, coefficients and intercepts.

    The loss is ``(1/n) sum_i s_i sum_k l(y_ik, f_k(x_i)) + alpha/2 |coef|^2``; with the angles z = W x, the waves c, s
    and the loss's slope g in f, the gradient in w_j is sum_i a_j (coef_sin,j c_ij - coef_cos,j s_ij) g_i x_i. What
    depends on the feature map alone is computed once, for many batches of few rows.

    Parameters
    ----------
    feature_map : FeatureMap
        Its phases, amplitudes and sparsity pattern are used; its frequencies are not.
    like : Expansion
        Of the device, dtype and shapes of all expansions.
    loss : {"squared_hinge", "log_loss", "squared_error"}
        As defined in `dkl.solvers.losses`.
    alpha : float
    """

    def __init__(self, feature_map: FeatureMap, like: Expansion, *, loss: RefinedLoss, alpha: float) -> None:
        xp, self._dtype = array_module(like.entries), like.entries.dtype
        self._m, self._loss, self._alpha = feature_map.n_frequencies, loss_of(loss), alpha
        phases = np.zeros(self._m) if feature_map.phases is None else np.asarray(feature_map.phases) * TURN
        amplitudes = np.tile(feature_map.amplitudes, feature_map.columns_a_frequency)
        self._phases, self._amplitudes = xp.asarray(phases), xp.asarray(amplitudes).astype(self._dtype)
        self._panels = [_Panel(feature_map.projection, span, xp) for span in spans(self._m, _FREQUENCIES)]

    def __call__(
        self, rows: ScaledRows, targets: np.ndarray, weight: np.ndarray | None, expansion: Expansion
    ) -> Expansion:
        """The gradient on a batch of n >= 1 rows; targets, weights, the expansion and the gradient are on their device.

        Targets (n, K) are -1 and +1 for "squared_hinge" and "log_loss", any numbers for "squared_error"; the weights s,
        (n,), are 1 each if they are None.
        """
        # cos z and sin z of all angles z = W x + b, which are features, or their derivatives
        waves, features = self._waves_of(rows, expansion.entries)
        scores = features @ expansion.coef.T + expansion.intercept
        # g_i: the slope of the loss in f(x_i), times the weight s_i / n of the row in the mean
        slope = self._loss.mean_slope(targets, scores, weight).astype(self._dtype)
        by_feature = expansion.coef * self._amplitudes
        # with one model the product has one term, which NumPy multiplies four times as fast without BLAS
        wave_gradient = slope * by_feature if len(by_feature) == 1 else slope @ by_feature
        return Expansion(
            entries=self._entry_gradient(rows, waves, wave_gradient),
            coef=slope.T @ features + self._alpha * expansion.coef,
            intercept=slope.sum(axis=0),
        )

    def _waves_of(self, rows: ScaledRows, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of all angles, (2, n, m); and those that are features, times their amplitudes."""
        xp, m, amplitudes = array_module(entries), self._m, self._amplitudes
        waves = xp.empty((2, rows.n_rows, m), self._dtype)
        features = xp.empty((rows.n_rows, len(amplitudes)), self._dtype)
        for panel in self._panels:
            span, W = panel.span, panel.dense(entries)
            phases = self._phases[span]
            # W (x - c) = W x - W c: sparse rows stay sparse
            shift = (phases if rows.constant is None else phases - W @ rows.constant).astype(self._dtype)
            z = xp.asarray(rows.X @ W.T)
            if xp is np:
                _write_waves(z, shift, span.start, amplitudes, waves, features)
                continue
            z += shift
            # only the fractional part of an angle in turns matters
            z = (z - xp.rint(z)) * z.dtype.type(1.0 / TURN)
            waves[0, :, span], waves[1, :, span] = xp.cos(z), xp.sin(z)
        if xp is not np:
            for part in range(len(amplitudes) // m):
                own = slice(part * m, (part + 1) * m)
                features[:, own] = waves[part] * amplitudes[own]
        return waves, features

    def _entry_gradient(self, rows: ScaledRows, waves: np.ndarray, wave_gradient: np.ndarray) -> np.ndarray:
        """The gradient in the entries of W; `wave_gradient` (n, n_features) is the loss's derivative in each wave."""
        xp, m = array_module(waves), self._m
        # rows are x / (2 pi), while the gradient is that for x
        unit = np.dtype(waves.dtype).type(1.0 / TURN)
        # the derivative in the angles z = W x: cos' = -sin and sin' = cos
        angle_gradient = -waves[1] * wave_gradient[:, :m]
        if wave_gradient.shape[1] > m:
            angle_gradient += waves[0] * wave_gradient[:, m:]
        angle_gradient *= unit
        parts = []
        for panel in self._panels:
            slopes = angle_gradient[:, panel.span]
            full = xp.asarray(rows.X.T @ slopes)
            if rows.constant is not None:
                full = full - rows.constant[:, None] * slopes.sum(axis=0)
            parts.append(panel.entries_of(full))
        return parts[0] if len(parts) == 1 else xp.concat(parts)


class _Panel:
    """Some frequencies, the rows `span` of W, of which a dense form exists in a step; `xp` has the arrays of steps."""

    def __init__(self, projection: Projection, span: slice, xp: Any) -> None:
        self.span = span
        # The positions of the stored entries of sparse frequencies in W, as one vector; dense frequencies have none.
        self._places: Any = None
        if not isinstance(projection, SparseProjection):
            return
        # the stored entries, and their places in W (F, d) and in its transpose (d, F), each as one vector
        self._own = slice(int(projection.indptr[span.start]), int(projection.indptr[span.stop]))
        self._shape = span.stop - span.start, projection.width
        rows, columns = projection.owners[self._own] - span.start, projection.indices[self._own].astype(np.int64)
        self._places = xp.asarray(rows * projection.width + columns)
        self._transposed_places = xp.asarray(columns * self._shape[0] + rows)

    def dense(self, entries: np.ndarray) -> np.ndarray:
        """The rows of W that have these entries, (F, d)."""
        if self._places is None:
            return entries[self.span]
        W = array_module(entries).zeros(self._shape, dtype=entries.dtype)
        W.reshape(-1)[self._places] = entries[self._own]
        return W

    def entries_of(self, transposed: np.ndarray) -> np.ndarray:
        """The entries that the descent changes, of an array (d, F) that has a number for each entry of W^T."""
        return transposed.T if self._places is None else transposed.reshape(-1)[self._transposed_places]


def _entries(projection: Projection) -> np.ndarray:
    """The entries of W that the descent changes: all of them, or the stored ones of sparse frequencies."""
    return projection.data if isinstance(projection, SparseProjection) else np.asarray(projection.dense())


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write_waves(
    z: np.ndarray, shift: np.ndarray, first: int, amplitudes: np.ndarray, waves: np.ndarray, features: np.ndarray
) -> None:
    """Cosines and sines of 2 pi (z + shift), z (n, F) of frequencies `first` on, in waves (2, n, m) and features.

    Features (n, len(amplitudes)) are the waves times amplitudes, all cosines first; z is overwritten.
    """
    n, width = z.shape
    m = waves.shape[2]
    # rows as vectors of their own: with indices of whole arrays these loops are not compiled to vector code
    for i in range(n):
        row = z[i]
        for j in range(width):
            row[j] += shift[j]
    if width == m:
        # one loop; with 50 frequencies a loop for each row takes ten times as long
        cos_sin_rows(z.reshape(z.size), waves[0].reshape(z.size), waves[1].reshape(z.size))
    else:
        for i in range(n):
            cos_sin_rows(z[i], waves[0, i, first : first + width], waves[1, i, first : first + width])
    for part in range(len(amplitudes) // m):
        a = amplitudes[part * m + first : part * m + first + width]
        for i in range(n):
            wave, feature = waves[part, i, first : first + width], features[i, part * m + first :]
            for j in range(width):
                feature[j] = wave[j] * a[j]


@dataclass(frozen=True, eq=False)
class ScaledMinibatch:
    """Rows of a block in random order, with their targets (n, K) and weights, all on one device.

    Sent to another process they go to its GPU, or to its memory if it has none.
    """

    rows: ScaledRows
    targets: Any
    weight: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_minibatch, (self.rows.constant, *map(sent, (self.rows.X, self.targets, self.weight)))


def _received_minibatch(
    constant: np.ndarray | None, X: tuple[Any, bool], targets: tuple[Any, bool], weight: tuple[Any, bool]
) -> ScaledMinibatch:
    """The minibatch in the process that receives it."""
    return ScaledMinibatch(ScaledRows(arrived(*X), constant), arrived(*targets), arrived(*weight))


def refinement_minibatch(block: Block, operands: Mapping[str, Any], number: int) -> ScaledMinibatch | None:
    """Scaled rows: minibatch `number` of the block's rows that are not held out, in a random order for the epoch.

    Operands: "feature_map", "targets", "held_out", "seed", "epoch", "dtype"; "device", from the pass.
    """
    order = shuffled_rows(block, operands["held_out"], (operands["seed"], operands["epoch"], block.index))
    size = refined_rows(operands["feature_map"], operands["dtype"])
    drawn = order[number * size : (number + 1) * size]
    if len(drawn) == 0:
        return None
    part, targets = with_targets(place(block.rows(drawn), operands.get("device", "cpu"))), operands["targets"]
    rows = scaled_rows(part.X, operands["feature_map"], operands["dtype"])
    return ScaledMinibatch(rows, targets.signed(part).astype(operands["dtype"]), targets.weights(part))


def refined_rows(feature_map: FeatureMap, dtype: str) -> int:
    """Rows of a minibatch, determined by the dtype and the number of columns alone."""
    return max(1, min(_MINIBATCH_ROWS, _MINIBATCH_BYTES // (feature_map.n_columns * np.dtype(dtype).itemsize)))
