"""Certificates: what the papers' theorems say as numbers, each with its terms and with what it covers and what not."""

from dkl.bounds.certificate import Bound
from dkl.bounds.similarity import landmark_bound

__all__ = ["Bound", "landmark_bound"]
