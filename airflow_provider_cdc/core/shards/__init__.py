"""Merged tables: which tables are published together, in which form, and their rows and files."""
