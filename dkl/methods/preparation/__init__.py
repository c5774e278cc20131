"""What every learner must know of the rows before it draws frequencies: scaler and bandwidth."""
