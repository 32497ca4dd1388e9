"""Filters (``where``): parsing a condition, and evaluating it on rows."""
