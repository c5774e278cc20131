"""Candidates weighed by their alignment with the targets (Sinha & Duchi 2016)."""
