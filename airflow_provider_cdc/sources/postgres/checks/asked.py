"""Lists the checks of PostgreSQL in the order in which they run. There is a group for each subject: server, run,
tables and request."""

from __future__ import annotations

from airflow_provider_cdc.core.checks import Check
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, RequestContext, RunContext, UserContext
from airflow_provider_cdc.sources.postgres.checks.history import HISTORY
from airflow_provider_cdc.sources.postgres.checks.privileges import SERVER_PRIVILEGES, TABLE_PRIVILEGES
from airflow_provider_cdc.sources.postgres.checks.request import REQUEST
from airflow_provider_cdc.sources.postgres.checks.settings import SETTINGS
from airflow_provider_cdc.sources.postgres.checks.slots import LOCKS, PUBLICATION, ROOM
from airflow_provider_cdc.sources.postgres.checks.tables import (
    COLUMNS,
    EVENT_TRIGGERS,
    PLANNABLE,
    RELATIONS,
    ROWS_ELSEWHERE,
)

OF_SERVER: tuple[Check[UserContext], ...] = (*SETTINGS, *SERVER_PRIVILEGES, *ROOM)
OF_A_RUN: tuple[Check[RunContext], ...] = HISTORY
OF_TABLES: tuple[Check[CatalogContext], ...] = (
    *TABLE_PRIVILEGES,
    *ROWS_ELSEWHERE,
    *COLUMNS,
    *RELATIONS,
    *PUBLICATION,
)
OF_A_REQUEST: tuple[Check[RequestContext], ...] = (
    *REQUEST,
    *SETTINGS,
    *SERVER_PRIVILEGES,
    *PLANNABLE,
    *LOCKS,
    *EVENT_TRIGGERS,
    *ROOM,
)
