"""Searches for frequencies with high potentials, which peaks, margin and the game share."""
