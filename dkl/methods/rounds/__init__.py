"""Rounds: columns of dictionaries join a linear model where it errs most, and all coefficients are refitted."""
