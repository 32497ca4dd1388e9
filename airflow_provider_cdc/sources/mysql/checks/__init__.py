"""The checks of a MySQL server, its tables and its log, as declarations grouped by subject."""
