"""What a task in Airflow's UI links to."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
