"""Checks of the replication slots, WAL senders, publications and locks that a run needs to read changes."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, TablesContext
from airflow_provider_cdc.sources.postgres.server.server import change_setting, platform
from airflow_provider_cdc.sources.postgres.server.session import query
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.publications import publication_problems


def _publication(context: CatalogContext) -> Iterable[Problem]:
    if not context.publication:
        return ()
    return publication_problems(context.connection, context.publication, context.logged, keys_only=context.reads_again)


def _locks(context: TablesContext) -> Iterable[Problem]:
    """Check that the server can drop the run's publication. DROP PUBLICATION locks all relations in it at once."""
    if context.publication:
        return
    connection = context.connection
    ((room, each),) = query(
        connection,
        "SELECT current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int "
        "+ current_setting('max_prepared_transactions')::int), current_setting('max_locks_per_transaction')::int8",
    )
    count = sum(len(leaves(table)) for table in context.logged)
    # Leave half of the locks to other sessions.
    if 2 * count > room:
        yield Problem(
            "max_locks_per_transaction",
            f"is {each}: the server has room for about {room} locks. Dropping the publication of the tables takes one "
            f"lock for each of their {count} partitions",
            change_setting(platform(connection), "max_locks_per_transaction", str(-(-each * 2 * count // room)))
            + "; or copy fewer of the tables at once, or name a publication in the connection",
        )


def _room(context: TablesContext) -> Iterable[Problem]:
    """Check that enough replication slots and WAL senders are free for a run.

    In addition to its own slot, a run has a temporary slot for the exported snapshot, and later a temporary slot to
    read the log. If rows are read ``again``, a run has both temporary slots at once.
    """
    again = context.reads_again
    exported = again or any(plan.consistency == "exported" for plan in context.plans)
    for setting, why, needed in (
        ("max_replication_slots", "replication slots", 3 if again else 2),
        ("max_wal_senders", "replication connections", 2 if exported else 1),
    ):
        limit, used = slots.room(context.connection, setting, needed)
        if limit - used < needed:
            yield Problem(
                setting,
                f"is {limit}, of which {used} are in use: a run of these tables needs {needed} {why}",
                change_setting(platform(context.connection), setting, str(used + max(needed, 4)))
                + "; or drop unused slots",
            )


PUBLICATION: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.publication",
        "The publication publishes every change to every row and column of the tables.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        "alter the publication as the message says, or let the run create a publication",
        _publication,
    ),
)

LOCKS: tuple[Check[TablesContext], ...] = (
    Check(
        "postgres.locks",
        "The server has room for the locks that are needed to drop the run's publication.",
        (Moment.PREFLIGHT,),
        "raise max_locks_per_transaction, copy fewer of the tables at once, or name a publication in the connection",
        _locks,
    ),
)

ROOM: tuple[Check[TablesContext], ...] = (
    Check(
        "postgres.room",
        "The server has enough free replication slots and WAL senders for a run.",
        (Moment.PREFLIGHT,),
        "raise max_replication_slots and max_wal_senders, or drop unused slots",
        _room,
    ),
)
