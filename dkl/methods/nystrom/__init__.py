"""Columns of a kernel: similarities to landmarks, whitened so that their inner products are the kernel's own."""
