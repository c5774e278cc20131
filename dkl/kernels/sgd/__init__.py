"""Stochastic gradient steps by scikit-learn's rule: in array operations, and as one CUDA kernel."""
