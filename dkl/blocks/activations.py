"""phi as a function of z = W x, for arrays of any array-API namespace."""

from __future__ import annotations

from typing import Any

from dkl.features.feature_map import FeatureMap


def activate(xp: Any, Z: Any, feature_map: FeatureMap, phases: Any = None) -> list[Any]:
    """The parts of phi without amplitudes: [cos z, sin z], [cos(z + phase)], [H(z) z^order] or [z].

    Parameters
    ----------
    xp : array namespace of `Z`
    Z : array of shape (n, m)
    feature_map : FeatureMap
    phases : array of shape (m,) or None
        The map's phases as an array of the same namespace and dtype.
    """
    if feature_map.activation == "cos-sin":
        return [xp.cos(Z), xp.sin(Z)]
    if feature_map.activation == "cos":
        return [xp.cos(Z + phases)]
    if feature_map.activation == "arc-cosine":
        step = xp.astype(Z > 0, Z.dtype)
        return [step if feature_map.order == 0 else step * Z**feature_map.order]
    return [Z]
