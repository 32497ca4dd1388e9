"""MySQL 8.0.26 and later."""

from airflow_provider_cdc.sources.mysql.source import MysqlSource

__all__ = ["MysqlSource"]
