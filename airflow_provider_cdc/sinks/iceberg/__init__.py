"""Publishes copies as Iceberg tables, and as cuts. A cut is the set of the copies of all tables of one run."""
