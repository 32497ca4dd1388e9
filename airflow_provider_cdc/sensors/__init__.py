"""Tasks that wait: for a server to reach a position, for a copy to be published."""

from airflow_provider_cdc import airflow_version

airflow_version.check()
