"""``dev/airflow``: an Airflow that is set up to copy tables and to read the copies."""
