"""Triggers of the sensors, which poll in Airflow's triggerer. So a waiting sensor does not occupy a worker."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
