"""Declarations of the checks of a MySQL server, its tables and its log, grouped by subject."""
