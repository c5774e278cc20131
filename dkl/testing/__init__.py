"""Checks that families, dictionaries, learners and sources of rows, ours or an extension's, keep their contracts."""

from dkl.testing.dictionaries import check_dictionary
from dkl.testing.family_checks import check_family
from dkl.testing.learners import check_learner
from dkl.testing.sources import check_source

__all__ = ["check_dictionary", "check_family", "check_learner", "check_source"]
