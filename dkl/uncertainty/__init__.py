"""The uncertainty of predictions (deviations, evidence, conformal intervals and sets), and drift between samples."""
