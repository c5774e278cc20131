"""Fits to rows that stay where they are: sites agree on frequencies and block numbers, and send sums alone."""
