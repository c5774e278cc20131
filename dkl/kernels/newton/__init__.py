"""The sums over mapped rows that Newton steps need."""
