"""Preparation of every learner: the scaler and the bandwidth of the rows, before frequencies are drawn."""
