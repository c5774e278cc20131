"""What families, dictionaries, learners and sources must satisfy: checks for our tests and for extensions."""

from dkl.testing.dictionaries import check_dictionary
from dkl.testing.family_checks import check_family
from dkl.testing.learners import check_learner
from dkl.testing.sources import check_source

__all__ = ["check_dictionary", "check_family", "check_learner", "check_source"]
