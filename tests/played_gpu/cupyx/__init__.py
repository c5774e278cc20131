"""The part of cupyx that blocks use, played by SciPy."""
