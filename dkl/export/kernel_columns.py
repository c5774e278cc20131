"""The columns of a kernel at landmarks in operations of other programs: those of a graph, those of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.families import Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.generic import scaled


def graph_columns(xp: Any, X: Any, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """k(x, Z) A of rows, amplitudes included, of shape (n, m), as `dkl.kernels.landmark_tiles.NystromProduct`.

    Distances, kernels and the product with A are in double precision: A is as large as the kernel matrix of the
    landmarks is near to singular.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
        Of similarities by a Gaussian, Laplacian or Matern kernel of smoothness 0.5, 1.5 or 2.5.
    dtype : dtype
        Of the result.

    Raises
    ------
    TypeError
        For other kernels.
    """
    nystrom = nystrom_of(feature_map)
    kernel, rows = nystrom.kernel, scaled(xp, X, feature_map.scaler, xp.float64)
    if nystrom.metric is not None:
        rows = rows * nystrom.metric if nystrom.metric.ndim == 1 else xp.matmul(rows, nystrom.metric)
    Z = nystrom.landmarks / getattr(kernel, "sigma", 1.0)
    rows = rows / getattr(kernel, "sigma", 1.0)
    if isinstance(kernel, Gaussian):
        similarities = xp.exp(_distances(rows, Z, lambda gap: gap * gap) * -0.5)
    elif isinstance(kernel, Laplacian):
        similarities = xp.exp(-_distances(rows, Z, xp.abs))
    elif isinstance(kernel, Matern) and kernel.nu in (0.5, 1.5, 2.5):
        r = xp.sqrt(_distances(rows, Z, lambda gap: gap * gap)) * float(np.sqrt(2.0 * kernel.nu))
        similarities = xp.exp(-r)
        if kernel.nu > 0.5:
            similarities = similarities * ((r + 1.0) if kernel.nu == 1.5 else (r * r * (1.0 / 3.0) + r + 1.0))
    else:
        raise TypeError(
            f"a graph has no operator for 'nystrom' features of {kernel!r}; fit NystromFeatures with a Gaussian, "
            "Laplacian or Matern(0.5, 1.5 or 2.5) kernel, or use model.predictor() in this process"
        )
    return xp.asarray(xp.matmul(similarities, nystrom.whitening * feature_map.amplitudes), dtype=dtype)


def _distances(rows: Any, Z: np.ndarray, of_gap: Any) -> Any:
    """sum_c of_gap(x_c - z_c), of shape (n, l), column by column.

    By |x|^2 + |z|^2 - 2 x.z a row near a landmark would lose half of its digits, and all columns at once would take an
    array of rows times landmarks times columns.
    """
    total = of_gap(rows[:, 0][:, None] - Z[:, 0])
    for c in range(1, Z.shape[1]):
        total = total + of_gap(rows[:, c][:, None] - Z[:, c])
    return total


def pairwise_kernel(feature_map: FeatureMap) -> tuple[str, dict[str, float]]:
    """The name and parameters of the same kernel among `sklearn.metrics.pairwise.pairwise_kernels`.

    Raises
    ------
    TypeError
        If scikit-learn has none.
    """
    kernel = nystrom_of(feature_map).kernel
    if isinstance(kernel, Gaussian):
        return "rbf", {"gamma": 0.5 / float(kernel.sigma) ** 2}
    if isinstance(kernel, Laplacian):
        return "laplacian", {"gamma": 1.0 / float(kernel.sigma)}
    if isinstance(kernel, Coordinates):
        return "linear", {}
    raise TypeError(
        f"scikit-learn has no pairwise kernel that computes 'nystrom' features of {kernel!r}; fit NystromFeatures with "
        "a Gaussian, Laplacian, Matern or Coordinates kernel, or use model.predictor() in this process"
    )


def nystrom_of(feature_map: FeatureMap) -> NystromProjection:
    """The landmarks of a map of kernels at landmarks; TypeError for another map."""
    if not isinstance(feature_map.projection, NystromProjection):
        raise TypeError(f"a Nystrom map holds a NystromProjection, not {type(feature_map.projection).__name__}")
    return feature_map.projection
