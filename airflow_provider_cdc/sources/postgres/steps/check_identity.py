"""Checks that a session has reached the server on which the run began, and that the run's slot and publication are
unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError, SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, leaves
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.postgres.checks.context import RunContext
from airflow_provider_cdc.sources.postgres.server.session import Connection
from airflow_provider_cdc.sources.postgres.slots import run_publication


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


def check_published(connection: Connection, identity: Mapping[str, str], tables: Sequence[Table]) -> None:
    """Check that the run's own publication has had all relations of ``tables`` since the run began. Otherwise the log
    may lack changes.

    :param identity: the identity of the run's initial point.
    :raises SchemaChanged: a relation left the publication.
    """
    if run_publication.SINCE not in identity:
        return
    followed = [table for table in tables if table.details.get(run_publication.FOLLOWED)]
    relations = {leaf.oid: table for table in followed for leaf in leaves(table)}
    members = run_publication.members_since(
        connection, identity["publication"], identity[run_publication.SINCE], list(relations)
    )
    for oid, table in relations.items():
        if oid not in members:
            raise SchemaChanged(
                "a relation of the table is no longer in the run's publication", where=str(table.name), hint=HINT
            )
