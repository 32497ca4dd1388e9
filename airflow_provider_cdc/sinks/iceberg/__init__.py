"""Copies as Iceberg tables, and cuts: sets of copies of all tables of a run."""
