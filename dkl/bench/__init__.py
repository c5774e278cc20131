"""Measurements, side by side in one process where they are ratios."""
