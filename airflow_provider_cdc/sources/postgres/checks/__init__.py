"""Declarations of the checks of a PostgreSQL server, its tables, slots and log, grouped by subject."""
