"""Peaks of the targets' Fourier potential (Bullins, Zhang & Zhang 2018, Algorithm 1)."""
