"""Copies of MySQL and PostgreSQL tables, exact at one committed point, with Airflow and Spark."""

__version__ = "0.2.0"
