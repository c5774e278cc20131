"""Fully corrective rounds: features searched for where the machine so far errs (Bullins, Zhang & Zhang 2018)."""
