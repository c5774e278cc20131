"""Chooses between models by held-out scores: `tune`, `compare` and `sweep`."""
