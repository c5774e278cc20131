"""Candidates resampled by their ridge leverage scores (Sun, Gilbert & Tewari 2018)."""
