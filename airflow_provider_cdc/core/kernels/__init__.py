"""Compiles and caches kernels (Numba)."""
