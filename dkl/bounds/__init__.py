"""Certificates: what the papers' theorems say as numbers, each with its terms and with what it covers and what not."""

from dkl.bounds.certificate import Bound
from dkl.bounds.leverage import LearningRate, coherence_ratio, feature_count, learning_rate
from dkl.bounds.similarity import landmark_bound
from dkl.bounds.tuning import Schedule, inverse_eigenvalue_bound, schedules

__all__ = [
    "Bound",
    "LearningRate",
    "Schedule",
    "coherence_ratio",
    "feature_count",
    "inverse_eigenvalue_bound",
    "landmark_bound",
    "learning_rate",
    "schedules",
]
