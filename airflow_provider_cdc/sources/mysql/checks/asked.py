"""The MySQL checks, grouped by their context (server, run, tables, request), in the order in which they run."""

from __future__ import annotations

from airflow_provider_cdc.core.checks import Check
from airflow_provider_cdc.sources.mysql.checks.columns import COLUMNS
from airflow_provider_cdc.sources.mysql.checks.context import (
    RequestContext,
    RunContext,
    ServerContext,
    TablesContext,
)
from airflow_provider_cdc.sources.mysql.checks.history import HISTORY
from airflow_provider_cdc.sources.mysql.checks.log import LOG
from airflow_provider_cdc.sources.mysql.checks.privileges import LOCK_PRIVILEGES, READ_PRIVILEGES, SERVER_PRIVILEGES
from airflow_provider_cdc.sources.mysql.checks.request import REQUEST
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS, SETTINGS_SINCE
from airflow_provider_cdc.sources.mysql.checks.tables import CASCADES, PARENTS, PARTITIONS, TABLES

OF_SERVER: tuple[Check[ServerContext], ...] = (*SETTINGS, *SERVER_PRIVILEGES)
OF_A_RUN: tuple[Check[RunContext], ...] = (*HISTORY, *SETTINGS, *SETTINGS_SINCE)
OF_TABLES: tuple[Check[TablesContext], ...] = (
    *READ_PRIVILEGES,
    *PARENTS,
    *TABLES,
    *COLUMNS,
    *PARTITIONS,
    *CASCADES,
    *LOCK_PRIVILEGES,
    *LOG,
)
OF_A_REQUEST: tuple[Check[RequestContext], ...] = (*REQUEST, *OF_SERVER, *OF_TABLES)
