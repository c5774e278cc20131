"""cupyx.scipy, played."""
