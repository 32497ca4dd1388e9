"""The steps of a run, and the operators that clean up, control, verify and announce."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
