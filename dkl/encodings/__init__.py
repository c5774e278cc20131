"""What a fit makes of the columns of a table that are no numbers yet: target means and counts of categories."""
