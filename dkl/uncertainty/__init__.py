"""What a prediction is worth: deviation, evidence, intervals with a promise; and whether rows have drifted."""
