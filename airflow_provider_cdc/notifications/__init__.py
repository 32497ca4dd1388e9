"""Notifications about unattended runs: failures and missed deadlines."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
