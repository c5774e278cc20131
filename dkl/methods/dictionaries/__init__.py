"""Dictionaries that are searched on a sample of the rows: cosine-sine pairs, and kernels at landmarks."""
