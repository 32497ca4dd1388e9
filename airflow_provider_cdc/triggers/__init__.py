"""Triggers of the sensors: they poll in Airflow's triggerer, so that no worker is occupied."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
