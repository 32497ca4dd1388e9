"""PostgreSQL 15 and later."""

from airflow_provider_cdc.sources.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
