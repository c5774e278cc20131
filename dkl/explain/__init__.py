"""Explanations of fitted models by columns: importance, partial dependence, contributions and effects."""

from dkl.explain.contributions import Background, Contributions, background_of, contributions
from dkl.explain.dependence import PartialDependence, partial_dependence
from dkl.explain.effects import Effect, effects, supports
from dkl.explain.importance import Importance, importance

__all__ = [
    "Background",
    "Contributions",
    "Effect",
    "Importance",
    "PartialDependence",
    "background_of",
    "contributions",
    "effects",
    "importance",
    "partial_dependence",
    "supports",
]
