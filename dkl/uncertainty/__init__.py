"""What a prediction is worth: its deviation, the evidence of a penalty, and intervals with a promise."""
