"""Block sums: weighted sums of features and of their squares over the rows of a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import CombinedProjection, FeatureMap
from dkl.features.projections import ColumnProjection
from dkl.kernels import device
from dkl.kernels.blas import product
from dkl.kernels.generic import activate
from dkl.kernels.harmonic_tiles import harmonic_sums
from dkl.kernels.landmark_tiles import nystrom_sums, similarity_sums
from dkl.kernels.pair_sums import pair_sums
from dkl.kernels.products import Product
from dkl.kernels.refusals import refuse_later
from dkl.kernels.step_tiles import step_sums
from dkl.kernels.tiles import RowTiles, checked_dtype, checked_rows, checked_weights, spans
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import namespace_of

__all__ = ["encode_targets", "feature_squares", "feature_sums"]


def feature_sums(
    X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: DTypeLike = "float32", *, stay: bool = False
) -> np.ndarray:
    """sum_i S[i, k] phi_j(x_i), the sum that all methods are based on.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d), any real dtype
        Raw rows; the map's scaler is applied a tile at a time.
    S : array of shape (n, K) or (n,)
        Weight columns; on the host, or on the GPU of the rows.
    feature_map : FeatureMap
        m frequencies, with amplitudes.
    dtype : {"float32", "float64"}
        Precision inside a tile. Tiles are added in float64, in their order.
    stay : bool
        Leave sums of rows on a GPU there, so that the host can wait for several sums at once.

    Returns
    -------
    ndarray of shape (parts, m, K), float64
        Two parts (cosines, sines) for "cos-sin" maps, else one.

    Raises
    ------
    ValueError
        If X has other columns than the map, or S another number of rows; for spherical harmonics if a row is off the
        sphere.
    TypeError
        If X does not hold real numbers.

    Notes
    -----
    The error against float64 is below 1e-5 sqrt(n) max|S| for angles of ordinary size. An angle above 2^23 turns (2^52
    in float64) has lost its fraction: its cosine is then that of a whole turn, and the sums stay finite.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.sums import feature_sums
    >>> from dkl.features.families import Gaussian
    >>> X = np.zeros((3, 2))
    >>> feature_sums(X, np.ones(3), Gaussian(1.0).draw(4, n_columns=2, seed=0))[:, 0, 0]
    array([3., 0.])
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        return device.feature_sums(X, S, feature_map, dtype, stay=stay)  # type: ignore[no-any-return]
    S = checked_weights(S, checked_rows(X, feature_map).shape[0])
    if feature_map.activation == "cos-sin":
        sums = pair_sums(X, S, feature_map, dtype)
    # a cosine with a phase is the real part of a wave; the imaginary part is computed and dropped
    elif feature_map.activation == "cos":
        sums = pair_sums(X, S, feature_map, dtype)[:1]
    elif feature_map.activation == "harmonics":
        sums = harmonic_sums(X, S, feature_map, dtype, power=1)
    elif feature_map.activation == "landmarks":
        return similarity_sums(X, S, feature_map, dtype, power=1)
    elif feature_map.activation == "steps":
        return step_sums(X, S, feature_map, dtype, power=1)
    elif feature_map.activation == "nystrom":
        return nystrom_sums(X, S, feature_map, dtype, power=1)
    elif isinstance(feature_map.projection, CombinedProjection):
        parts = feature_map.projection.maps
        sums = np.concatenate([feature_sums(X, S, part, dtype).reshape(-1, S.shape[1]) for part in parts])[None]
    else:
        sums = _power_sums(X, S, feature_map, dtype, power=1)
    return sums * feature_map.amplitudes[:, None]


def feature_squares(
    X: Rows, s: np.ndarray, feature_map: FeatureMap, dtype: DTypeLike = "float32", *, stay: bool = False
) -> np.ndarray:
    """sum_i s_i phi_j(x_i)^2, the diagonal, which an unbiased alignment subtracts from the potential.

    Parameters
    ----------
    X, feature_map, dtype, stay
        As in `feature_sums`.
    s : array of shape (n,)

    Returns
    -------
    ndarray of shape (parts, m), float64

    Notes
    -----
    cos^2 z = (1 + cos 2z) / 2: the squares of Fourier features are sums at twice the frequency.
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        squares = device.feature_squares(X, s, feature_map, dtype)
        return squares if stay else device.on_host(squares)
    S = checked_weights(s, checked_rows(X, feature_map).shape[0])
    if feature_map.is_fourier:
        # cos^2 z = (1 + cos 2z) / 2 and sin^2 z = (1 - cos 2z) / 2, so that one sum at twice the angle gives both
        squares = squares_of_pair(S.sum(), pair_sums(X, S, feature_map, dtype, multiple=2.0)[0, :, 0])
        squares = squares[: feature_map.columns_a_frequency]
    elif feature_map.activation == "harmonics":
        squares = harmonic_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    elif feature_map.activation == "landmarks":
        return similarity_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    elif feature_map.activation == "steps":
        return step_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    elif feature_map.activation == "nystrom":
        return nystrom_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    elif isinstance(feature_map.projection, CombinedProjection):
        squares = np.concatenate([feature_squares(X, s, part, dtype).ravel() for part in feature_map.projection.maps])
        squares = squares[None]
    else:
        squares = _power_sums(X, S, feature_map, dtype, power=2)[:, :, 0]
    return squares * feature_map.amplitudes**2


def squares_of_pair(total: float, doubled: np.ndarray) -> np.ndarray:
    """Sums of cos^2 and sin^2, (2, m), from the sum of the weights and the cosine sums at twice the angle."""
    return np.stack([total + doubled, total - doubled]) / 2.0


def _power_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, *, power: int) -> np.ndarray:
    """sum_i S[i, k] phi_j(x_i)^power for features with one column for each frequency, of shape (1, m, K)."""
    if isinstance(feature_map.projection, ColumnProjection):
        # for features that are columns, each column is summed once, even if it was drawn several times
        return _column_sums(X, S, feature_map, dtype, power)[feature_map.projection.columns][None]
    # ramps and linear forms: a tile of angles, the activation, and a product with the weights
    product = Product(X, feature_map, dtype)
    total = np.zeros((1, feature_map.n_frequencies, S.shape[1]))
    for rows, tile in product.tiles:
        weights = S[rows].astype(dtype)
        for chosen in spans(feature_map.n_frequencies, product.step):
            (phi,) = activate(np, product(tile, chosen), feature_map)
            total[0, chosen] += np.dot(phi.T if power == 1 else np.square(phi).T, weights)
    return total


def _column_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, power: int) -> np.ndarray:
    """Sums of the (scaled) columns or of their squares, of shape (d, K); sparse rows stay sparse."""
    tiles = RowTiles(X, feature_map, dtype)
    first = np.zeros((feature_map.n_columns, S.shape[1]))
    second = np.zeros_like(first)
    for rows, tile in tiles:
        weights = S[rows].astype(dtype)
        first += product(tile.T, weights)
        if power == 2:
            second += product((tile * tile).T, weights)
    if tiles.constant is None:
        return first if power == 1 else second
    # sparse rows were not centred: sum s (x - c) = sum s x - c sum s, and the squares likewise
    center, weight = tiles.constant[:, None], S.sum(axis=0)
    if power == 1:
        return first - center * weight
    return second - 2.0 * center * first + center**2 * weight


def encode_targets(block: Block, n_classes: int | None, class_weight: np.ndarray | None = None) -> np.ndarray:
    """The weight columns of a block: weighted one-hot rows of its classes, or weighted targets and the weights.

    Parameters
    ----------
    block : Block
    n_classes : int or None
        K for class codes 0 .. K-1; None for regression.
    class_weight : ndarray of shape (K,) or None
        Factor on the weights of each class.

    Returns
    -------
    ndarray of shape (n_b, K) or (n_b, t + 1), float64, where the targets are
        Classes: column k holds the weights of the rows of class k. Regression: the weight times each of the t targets,
        then the weight itself.

    Raises
    ------
    ValueError
        If the block has no targets, or a code is not in 0 .. K-1; on a GPU it is raised once the host waits for sums.
    """
    if block.y is None:
        raise ValueError("these rows have no target (y); supervised sums need one")
    xp = namespace_of(block.y)
    if n_classes is None:
        targets = xp.reshape(xp.asarray(block.y, dtype=np.float64), (block.n_rows, -1))
        # from sums of y phi and of phi those of (y - mean) phi follow for any mean
        return xp.concat([targets, xp.ones((block.n_rows, 1))], axis=1) * block.weights[:, None]
    codes, K = block.y, n_classes

    def unknown() -> ValueError:
        on_host = np.asarray(device.on_host(codes))
        row = int(np.flatnonzero((on_host < 0) | (on_host >= K))[0])
        return ValueError(
            f"y[{row}] of block {block.index} is the class code {on_host[row]}; codes run from 0 to {K - 1}"
        )

    if xp is not np:
        refuse_later((codes < 0) | (codes >= K), unknown)
        weights = block.weights
        if class_weight is not None:
            weights = weights * xp.take(xp.asarray(class_weight), xp.clip(codes, 0, K - 1))
        return xp.where(codes[:, None] == xp.arange(K), weights[:, None], 0.0)
    if block.n_rows and not (codes.min() >= 0 and codes.max() < K):
        raise unknown()
    weights = block.weights if class_weight is None else block.weights * class_weight[codes]
    encoded = np.zeros((block.n_rows, K))
    # a column for each class, so that one product computes the sums of all classes
    encoded[np.arange(block.n_rows), codes] = weights
    return encoded
