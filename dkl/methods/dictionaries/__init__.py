"""Dictionaries of rounds that are searched on a sample of the rows, a module each."""
