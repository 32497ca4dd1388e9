"""Checks that a session has reached the server on which the run began, and that the run's slot and publication are
unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import ExactnessError
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.postgres.checks.context import RunContext
from airflow_provider_cdc.sources.postgres.server.session import Connection


def check_identity(connection: Connection, expected: Mapping[str, str], position: Lsn) -> None:
    """Check that this server has the ``expected`` identity, and that the run's slot and publication are unchanged.

    :raises SourceReplaced: this is another server, or the server has been promoted or restored since the run began.
    :raises LogGone: the run's slot is gone, was invalidated, or was advanced by another client.
    :raises ExactnessError: the publication was altered, so the log may lack changes.
    """
    context = RunContext(connection, expected=expected, position=position)
    if problems := problems_of(OF_A_RUN, Moment.EACH_STEP, context):
        raise ExactnessError(
            "; ".join(f"{problem.where} {problem.what}" for problem in problems), hint="trigger a new run"
        )
