"""What people are told of a run while nobody watches it."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
