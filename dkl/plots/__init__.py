"""Pictures: data in attributes, drawn by `.plot(ax=None)`; matplotlib is imported when one is drawn."""

from dkl.explain.contributions import ContributionsDisplay
from dkl.explain.dependence import DependenceDisplay
from dkl.explain.importance import ImportanceDisplay
from dkl.plots.answers import AnswersDisplay
from dkl.plots.column_shares import DriftDisplay
from dkl.plots.coverage import CoverageDisplay
from dkl.plots.effect_curves import EffectsDisplay
from dkl.plots.history import HistoryDisplay
from dkl.plots.kernel import KernelDisplay
from dkl.plots.plane import DecisionDisplay, WeightedRowsDisplay
from dkl.plots.potential_map import LandscapeDisplay
from dkl.plots.score_curves import ComparisonDisplay
from dkl.plots.sphere import SphereDisplay
from dkl.plots.trials import TrialsDisplay

__all__ = [
    "AnswersDisplay",
    "ComparisonDisplay",
    "ContributionsDisplay",
    "CoverageDisplay",
    "DecisionDisplay",
    "DependenceDisplay",
    "DriftDisplay",
    "EffectsDisplay",
    "HistoryDisplay",
    "ImportanceDisplay",
    "KernelDisplay",
    "LandscapeDisplay",
    "SphereDisplay",
    "TrialsDisplay",
    "WeightedRowsDisplay",
]
