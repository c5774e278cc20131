"""What a family, a learner and a source of rows must satisfy: checks for our tests and other people's extensions."""

from dkl.testing.family_checks import check_family
from dkl.testing.learners import check_learner
from dkl.testing.sources import check_source

__all__ = ["check_family", "check_learner", "check_source"]
