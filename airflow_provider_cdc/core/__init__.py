"""Pure values and algebra: no Airflow, no Spark, no driver."""
