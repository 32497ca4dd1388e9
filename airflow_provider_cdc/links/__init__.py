"""Links of the tasks in Airflow's UI."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
