"""Sensors that wait until a server reaches a position, until a server keeps its log for long enough, or until a copy is
published."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
