"""KernelClassifier and KernelRegressor: learned features and a linear model on them, as one estimator."""
