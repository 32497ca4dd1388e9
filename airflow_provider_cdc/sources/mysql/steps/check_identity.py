"""Checks that the server, the server's history and its settings are the same as when a run began or a copy was made."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import ExactnessError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.mysql.checks.context import RunContext
from airflow_provider_cdc.sources.mysql.server.session import SERVER_UUID, Connection


def check_identity(
    settings: ConnectionSettings,
    connection: Connection,
    expected: Mapping[str, str],
    position: GtidSet,
    moment: Moment = Moment.EACH_STEP,
) -> None:
    """Check that the server is the server of ``expected``, and that its log history and settings have not changed.

    :raises SourceReplaced: another server answered, or the server's history does not contain ``position``.
    :raises LogGone: the log was purged past ``position``. Or the server has crashed since ``position``, or was
        restarted more than once.
    :raises ExactnessError: a setting on which exactness depends is wrong, or was set after ``expected`` was recorded.
    """
    context = RunContext(connection, settings=settings, expected=expected, position=position)
    if problems := problems_of(OF_A_RUN, moment, context):
        raise ExactnessError(
            "; ".join(f"{problem.where} {problem.what}" for problem in problems),
            where=f"server {context.state[SERVER_UUID]}",
            hint="correct the setting, do not change it during a run, and trigger a new run",
        )
