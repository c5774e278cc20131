"""Similarities to landmarks (Letarte, Morvant & Germain 2019, section 4.2)."""
