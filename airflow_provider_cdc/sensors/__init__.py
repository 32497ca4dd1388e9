"""Sensors: they wait until a server reaches a position, keeps its log long enough, or a copy is published."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
