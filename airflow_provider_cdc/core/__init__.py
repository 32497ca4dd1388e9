"""Values, records and algorithms without Airflow, Spark or a database driver."""
