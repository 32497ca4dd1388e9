"""Filters (the option ``where``): parses conditions, and evaluates them on rows."""
