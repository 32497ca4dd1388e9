"""Notifications about unattended runs: failures, and deadlines that were missed."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
