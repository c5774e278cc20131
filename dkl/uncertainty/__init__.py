"""What a prediction is worth, and whether rows are still those that a model learned from."""
