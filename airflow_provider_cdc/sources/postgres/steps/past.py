"""A position in the past, and whether a copy can be exact there.

The rows are read now and rewound to the past position. What has to hold during a run has to have held since then: that
the log tells all changes of the copied tables, and that they are what they were. The standing slot has the one, and its
record says since when, and by a digest of each table, whether the other is so. From then on such a run is as any other:
it has a slot of its own, at the past position, which is a copy of the standing one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CdcError, LogGone, PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.planning.server_clock import wait_for_clock
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves, read_tables
from airflow_provider_cdc.sources.postgres.checks.context import ServerContext
from airflow_provider_cdc.sources.postgres.checks.past import PAST, Past, PastContext, micros
from airflow_provider_cdc.sources.postgres.checks.settings import SETTINGS
from airflow_provider_cdc.sources.postgres.checks.tables import RELATIONS, ROWS_ELSEWHERE
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, query, session, value
from airflow_provider_cdc.sources.postgres.slots import durability_wait, run_publication, slots, transaction_waits
from airflow_provider_cdc.sources.postgres.slots.commits import advance
from airflow_provider_cdc.sources.postgres.slots.position_of_time import prefix_at, remember
from airflow_provider_cdc.sources.postgres.slots.standing_record import (
    name_of,
    now,
    said,
)
from airflow_provider_cdc.sources.postgres.slots.standing_slot import usable

_POLL_SECONDS = 0.5
_WHERE = "parameter as_of"

_log = logging.getLogger(__name__)


def check_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
    """`GoesBack.check_past`."""
    with session(settings) as connection:
        past = _past(connection, options)
        position = resolve(settings, connection, past, as_of, options, final=False)
        tables = read_tables(connection, [plan.table for plan in plans])
        if problems := _problems_since(Moment.PREFLIGHT, connection, past, tables, plans, position, as_of):
            raise PreflightError(problems)


def record_past(
    settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str
) -> InitialPoint:
    """`GoesBack.record_past`."""
    with session(settings) as connection:
        if problems := problems_of(SETTINGS, Moment.POSITION_FIXED, ServerContext(connection)):
            raise PreflightError(problems)
        server_identity = identity(connection)
        past = _past(connection, options)
        position = resolve(settings, connection, past, as_of, options, final=True)
        earlier = slots.names_of_run(connection, run_id)
        name = slots.name_of_try(run_id)
        try:
            copy_slot(connection, past, name, position)
            # Only now: whatever commits before the position may have been on its way when it was resolved.
            transaction_waits.settle(settings, connection, options.lock.slot_wait_seconds)
            # And only now: what is as it was when it joined has been so at the position.
            tables = read_tables(connection, [plan.table for plan in plans], past.name)
            fixed = Moment.POSITION_FIXED
            if problems := _problems_since(fixed, connection, past, tables, plans, position, as_of):
                raise PreflightError(problems)
            server_identity |= slots.identity_of_try(name, past.name)
            # Other runs have other tables join the publication meanwhile.
            relations = ",".join(str(leaf.oid) for table in tables for leaf in leaves(table))
            server_identity["publication_relations"] = relations
            server_identity["publication_state"] = run_publication.publication_state(connection, past.name, relations)
            # The tables are looked at last: the publication was what is on record of it when its state was taken.
            if _problems_since(fixed, connection, past, tables, plans, position, as_of):
                raise SourceUnavailable(
                    "the publication was altered while the position was fixed",
                    where=f"publication {past.name}",
                    hint="leave it alone; the task can be retried as it is",
                )
            durability_wait.wait(partial(query, connection), settings.address)
        except BaseException:
            # Nobody would ever find the slot, so it must not stay. The first error is the one to raise.
            try:
                slots.drop(settings, name)
            except CdcError as also:
                _log.warning("The slot %s may be left: %s", name, also)
            raise
    return InitialPoint(
        position,
        server_identity,
        tuple(replace(table, options=plan.options) for plan, table in zip(plans, tables, strict=True)),
        0.0,
        tuple(slots.identity_of_try(other) for other in earlier),
    )


def find_past(connection: Connection, options: StepOptions) -> Past | None:
    """The standing slot that ``options`` name; None: there is none yet, or its past was lost, and then the log says
    why."""
    name = name_of(connection, options.standing_slot)
    record, slot = usable(connection, name), slots.state(connection, name)
    if record is None or slot is None or slot.confirmed is None:
        return None
    return Past(name, record, record.since(slot.confirmed), slot.confirmed)


def _past(connection: Connection, options: StepOptions) -> Past:
    if not options.standing_slot:
        raise PreflightError(
            [
                Problem(
                    _WHERE,
                    "PostgreSQL keeps its past only for a standing slot, and none is named",
                    "give the option standing_slot a name, such as nightly: the past then begins with the first run",
                )
            ]
        )
    past = find_past(connection, options)
    if past is None:
        raise PreflightError(
            [
                Problem(
                    f"standing slot {name_of(connection, options.standing_slot)}",
                    "there is none yet, or its past was lost",
                    "it is made by preflight of the next run that has no other problem; ask for a time after that",
                )
            ]
        )
    return past


def resolve(
    settings: ConnectionSettings,
    connection: Connection,
    past: Past,
    as_of: AsOf,
    options: StepOptions,
    *,
    final: bool,
) -> Lsn:
    """The position that ``as_of`` means.

    :param final: a time is final once something was committed after it; that is provoked, and waited for.
    :raises PreflightError: it lies before the standing slot, or in the future.
    :raises SourceUnavailable: nothing was committed after the time: the server's clock was set back.
    """
    if isinstance(as_of, GtidSet):
        raise _refused(f"{as_of} is a GTID set, and the source is PostgreSQL", "give a time or an LSN")
    if isinstance(as_of, Lsn):
        flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        if as_of > flushed:
            raise _refused(f"{as_of} is in the future: the log reaches to {flushed}", "let the run begin after that")
        if as_of < past.confirmed:
            raise _refused(f"{as_of} lies before the standing slot {past.name}", past.earliest)
        return as_of
    assert isinstance(as_of, datetime)
    when = micros(as_of)
    wait_for_clock(as_of, lambda: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now(connection)))
    deadline = time.monotonic() + options.as_of_wait_seconds
    marks = past.marks
    while (
        (prefix := prefix_at(settings, past.name, marks, past.record.joins, when)) is not None
        and final
        and not prefix.final
    ):
        if len(marks) > len(past.marks):
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f"no commit is later than {said(when)} yet, for the server's clock was set back: what is committed "
                    "next may still belong to that time",
                    where=settings.address,
                    hint="ask for an earlier time, or wait for longer (as_of_wait_seconds); the task can be retried",
                )
            time.sleep(_POLL_SECONDS)
        # What was looked through need not be again. Then a commit that is later is provoked: it changes nothing.
        marks = (*past.marks, prefix.mark)
        query(connection, "SELECT pg_logical_emit_message(true, %s, '')", (APPLICATION,))
    if prefix is None:
        raise _refused(f"{said(when)} lies before the standing slot {past.name}", past.earliest)
    remember(settings, past.name, past.record.beginning, prefix.mark, options.lock.slot_wait_seconds)
    return prefix.position


def _problems_since(
    moment: Moment,
    connection: Connection,
    past: Past,
    tables: Sequence[Table],
    plans: Sequence[TablePlan],
    position: Lsn,
    as_of: AsOf,
) -> list[Problem]:
    """Why a copy of ``tables`` cannot be exact at ``position``: each with the earliest one at which it could be."""
    context = PastContext(connection, tables=tables, plans=plans, past=past, position=position, as_of=as_of)
    return problems_of((*ROWS_ELSEWHERE, *RELATIONS, *PAST), moment, context)


def copy_slot(connection: Connection, past: Past, name: str, position: Lsn) -> None:
    """Make the run's slot: a copy of the standing one that stands at ``position``.

    A slot that is moved on is not written to disk at once, and a crash would set it back. A new one is: so the one that
    is moved on is a temporary one, and the run's a copy of it.
    """
    between = f"{slots.PREFIX}past_{uuid4().hex[:12]}"
    query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (past.name, between))
    # The standing slot may have been moved on meanwhile.
    advance(connection, between, position)
    query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, false)", (between, name))
    query(connection, "SELECT pg_drop_replication_slot(%s)", (between,))
    slot_state = slots.state(connection, name)
    if slot_state is None or slot_state.lost or slot_state.confirmed != position:
        raise LogGone(
            f"the copy of the standing slot does not stand at {position}",
            where=f"replication slot {past.name}",
            hint=past.earliest,
        )


def _refused(what: str, hint: str) -> PreflightError:
    return PreflightError([Problem(_WHERE, what, hint)])
