"""phi as a function of z, for arrays of any array-API namespace."""

from __future__ import annotations

from typing import Any

from dkl.features.feature_map import FeatureMap


def activate(xp: Any, z: Any, feature_map: FeatureMap) -> list[Any]:
    """The parts of phi without amplitudes: [cos z, sin z], [cos z], [H(z) z^order] or [z].

    Parameters
    ----------
    xp : array namespace of `z`
    z : array of shape (n, m)
        Radians, the phases included.
    feature_map : FeatureMap
    """
    if feature_map.activation == "cos-sin":
        return [xp.cos(z), xp.sin(z)]
    if feature_map.activation == "cos":
        return [xp.cos(z)]
    if feature_map.activation == "arc-cosine":
        return [ramp(xp, z, feature_map.order)]
    return [z]


def ramp(xp: Any, z: Any, order: int) -> Any:
    """H(z) z^order: a step (0 at z = 0), a ramp, a squared ramp."""
    zero = xp.zeros_like(z)
    if order == 0:
        return xp.where(z > 0, xp.ones_like(z), zero)
    positive = xp.where(z > 0, z, zero)
    return positive if order == 1 else positive * positive
