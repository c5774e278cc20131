"""Rounds in which atoms of several dictionaries compete: steps, searched waves and kernels at landmarks."""
