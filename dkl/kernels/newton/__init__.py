"""What Newton steps add up over mapped rows."""
