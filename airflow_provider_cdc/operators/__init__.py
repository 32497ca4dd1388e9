"""The steps of a run, one operator each."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
