"""The task group for DAGs that copy tables, and the forms of the shipped DAGs."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
