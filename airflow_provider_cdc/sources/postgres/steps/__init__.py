"""The steps of a run on PostgreSQL."""
