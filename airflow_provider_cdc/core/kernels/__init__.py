"""Compiled kernels: how they are compiled and cached."""
