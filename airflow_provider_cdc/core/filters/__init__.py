"""Filters (``where``): parses a condition, and evaluates it on rows."""
