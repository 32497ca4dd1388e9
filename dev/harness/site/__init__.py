"""``dev/airflow``: an Airflow with everything in place to copy tables, and to read the copies."""
