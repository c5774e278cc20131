"""The features of several learners, or of several searches of one, as columns of one linear model."""
