"""Tests of what a prediction is worth."""
