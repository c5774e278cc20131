"""Certificates: what the papers' theorems say as numbers, each with its terms and with what it covers and what not."""

from dkl.bounds.alignment import (
    alignment_deviation,
    alignment_gap,
    candidate_deviation,
    rademacher_bound,
    risk_bound,
)
from dkl.bounds.certificate import Bound, Bounds
from dkl.bounds.leverage import LearningRate, coherence_ratio, feature_count, learning_rate
from dkl.bounds.margins import (
    error_bound,
    guaranteed_regret,
    kernel_complexity,
    margin_shortfall,
    normalised_margins,
    played_regret,
    played_value,
    potential_deviation,
    uniform_sample_size,
)
from dkl.bounds.pair_loss import divergence_bound, first_order_bound, second_order_bound
from dkl.bounds.similarity import landmark_bound
from dkl.bounds.tuned import Schedule, inverse_eigenvalue_bound, schedules

__all__ = [
    "Bound",
    "Bounds",
    "LearningRate",
    "Schedule",
    "alignment_deviation",
    "alignment_gap",
    "candidate_deviation",
    "coherence_ratio",
    "divergence_bound",
    "error_bound",
    "feature_count",
    "first_order_bound",
    "guaranteed_regret",
    "inverse_eigenvalue_bound",
    "kernel_complexity",
    "landmark_bound",
    "learning_rate",
    "margin_shortfall",
    "normalised_margins",
    "played_regret",
    "played_value",
    "potential_deviation",
    "rademacher_bound",
    "risk_bound",
    "schedules",
    "second_order_bound",
    "uniform_sample_size",
]
