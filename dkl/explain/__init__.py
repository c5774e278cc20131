"""What a fitted model has learned, column by column: importance, dependence, contributions, effects."""

from dkl.explain.effects import Effect, effects, supports

__all__ = ["Effect", "effects", "supports"]
