"""Client mode: ``spark-submit`` and the driver run on the Airflow worker, as child processes of the task."""
