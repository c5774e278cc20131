"""Candidates weighed by a pseudo-posterior over their losses (Letarte, Morvant & Germain 2019, section 5.4)."""
