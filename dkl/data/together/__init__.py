"""Columns that keep rows together: groups and times, from what users give to what rows are held out with."""
