"""What a DAG's author uses."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
