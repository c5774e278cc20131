"""Losses, linear systems, quadratic programs and the divergence ball: mathematics on small arrays. No Dask."""
