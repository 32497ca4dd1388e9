"""Removes the files, slots and publications that ended runs left behind: the operator `CleanOperator`, and the command
``python -m airflow_provider_cdc.clean``."""
