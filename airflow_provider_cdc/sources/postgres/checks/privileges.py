"""Checks of the privileges of the connection's user."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, UserContext


def _slots(context: UserContext) -> Iterable[Problem]:
    return context.missing_of_server


def _tables(context: CatalogContext) -> Iterable[Problem]:
    return context.missing_of_tables


SERVER_PRIVILEGES: tuple[Check[UserContext], ...] = (
    Check(
        "postgres.may-read-log",
        "The user may create and read slots, and write messages to the log. If the connection names no publication, "
        "the user may create one.",
        (Moment.PREFLIGHT,),
        "grant what the message says, or name a publication in the connection",
        _slots,
    ),
)

TABLE_PRIVILEGES: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.may-read-tables",
        "The user may read the tables, with all of their partitions and copied columns. If the connection names no "
        "publication, the user may also publish the tables.",
        (Moment.PREFLIGHT,),
        "GRANT SELECT on the tables; let their owner create a publication, or grant the owner's role",
        _tables,
    ),
)
