"""What is checked of a PostgreSQL server, its tables, slots and log, as declarations grouped by subject."""
