"""The methods, a folder each: learner (scikit-learn), driver (state machine), sums (block functions), problem."""
