"""Certificates: what the papers' theorems say as numbers, each with its terms and with what it covers and what not."""

from dkl.bounds.certificate import Bound
from dkl.bounds.similarity import landmark_bound
from dkl.bounds.tuning import Schedule, inverse_eigenvalue_bound, schedules

__all__ = ["Bound", "Schedule", "inverse_eigenvalue_bound", "landmark_bound", "schedules"]
