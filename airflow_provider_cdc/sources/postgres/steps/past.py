"""Resolves positions in the past, and checks whether a copy can be exact at such a position.

The rows are read now and rewound to the past position. For this, two conditions must have held since that position: the
log has all changes of the copied tables, and the tables are unchanged. The standing slot has the log. Its record has,
for each table, the position since which the log has all changes, and a digest that shows whether the table is
unchanged. The run's own slot is a copy of the standing slot, at the past position. In all other respects, the run is
like any other run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from airflow_provider_cdc.core.checks import Moment
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import LogGone, PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.planning.survey import FINAL_SECONDS, wait_for_clock
from airflow_provider_cdc.sources.postgres.checks.asked import check_settings
from airflow_provider_cdc.sources.postgres.checks.past import Past, check_since_past, micros
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    query,
    session,
    slot_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.slots import slots, waits
from airflow_provider_cdc.sources.postgres.slots.commits import advance, prefix_at, remember
from airflow_provider_cdc.sources.postgres.slots.standing_record import (
    emit_commit,
    format_micros,
    name_of,
    now,
)
from airflow_provider_cdc.sources.postgres.steps.standing_slot import usable

_POLL_SECONDS = 0.5
_WHERE = "parameter as_of"


def check_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
    """`Source.check_past`."""
    with session(settings) as connection:
        past = _past(settings, connection, options)
        position = resolve(settings, connection, past, as_of, options, final=False)
        check_since_past(Moment.PREFLIGHT, settings, connection, past, plans, position, as_of)


def record_past(
    settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str
) -> InitialPoint:
    """`Source.record_past`."""
    with session(settings) as connection:
        check_settings(connection, Moment.POSITION_FIXED)
        facts = identity(connection)
        past = _past(settings, connection, options)
        position = resolve(settings, connection, past, as_of, options, final=True)
        earlier = slots.names_of_run(connection, run_id)
        name = slots.name_of_try(run_id)
        try:
            copy_slot(connection, past, name, position)
            # Wait only after the slot exists. When the position was resolved, some transactions that committed before
            # the position may not have been visible yet.
            waits.wait_until_visible(settings, connection, options.lock.slot_wait_seconds)
            # Check the tables only after this wait. If a table is the same now as when it joined the standing slot, it
            # was also the same at the position.
            tables, members = check_since_past(
                Moment.POSITION_FIXED, settings, connection, past, plans, position, as_of
            )
            facts = replace(slots.with_slot(facts, name, past.name), publication=members)
            waits.wait(partial(query, connection), settings.address)
        except BaseException:
            slots.drop_after_error(settings, name)
            raise
    return InitialPoint(
        position,
        facts.recorded(),
        tuple(replace(table, options=plan.options) for plan, table in zip(plans, tables, strict=True)),
        0.0,
        slots.superseded(earlier),
    )


def find_past(settings: ConnectionSettings, connection: Connection, options: StepOptions) -> Past | None:
    """Return the standing slot of ``options``. None: the slot does not exist yet, or its past was lost. The reason for
    a lost past is logged."""
    name = name_of(connection, options.standing_slot)
    record, slot = usable(settings, connection, name), slots.state(connection, name)
    if record is None or slot is None or slot.confirmed is None:
        return None
    return Past(name, record, record.since(slot.confirmed), slot.confirmed)


def _past(settings: ConnectionSettings, connection: Connection, options: StepOptions) -> Past:
    if not options.standing_slot:
        raise PreflightError(
            [
                Problem(
                    _WHERE,
                    "PostgreSQL retains old log only if a standing slot exists, and `Refresh.standing_slot` is empty",
                    "set `Refresh.standing_slot` to a name, such as nightly. Times since the first run with this "
                    "option can then be requested",
                )
            ]
        )
    past = find_past(settings, connection, options)
    if past is None:
        raise PreflightError(
            [
                Problem(
                    f"standing slot {name_of(connection, options.standing_slot)}",
                    "the standing slot does not exist yet, or the log that it kept was lost",
                    "if the next run has no other problems, its task `preflight` creates the standing slot. Then set "
                    "`as_of` to a time after this task has run",
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
    """Return the position of ``as_of``.

    :param final: whether the position must be final. The position of a time is final once there is a commit with a
        later time. This function causes such a commit and waits for it.
    :raises PreflightError: the position or time lies before the standing slot, or in the future.
    :raises SourceUnavailable: nothing was committed after the time, because the server's clock was set back.
    """
    if isinstance(as_of, GtidSet):
        raise _refused(f"{as_of} is a GTID set, but the source is PostgreSQL", "give a time or an LSN")
    if isinstance(as_of, Lsn):
        flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        if as_of > flushed:
            raise _refused(f"{as_of} is in the future: the log ends at {flushed}", "start the run after that position")
        if as_of < past.confirmed:
            raise _refused(f"{as_of} lies before the standing slot {past.name}", past.earliest)
        return as_of
    assert isinstance(as_of, datetime)
    when = micros(as_of)
    wait_for_clock(as_of, lambda: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now(connection)))
    deadline = time.monotonic() + FINAL_SECONDS
    marks = past.marks
    while (
        (prefix := prefix_at(settings, past.name, marks, past.record.joins, when)) is not None
        and final
        and not prefix.final
    ):
        if len(marks) > len(past.marks):
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f"no commit is later than {format_micros(when)} yet, because the server's clock was set "
                    "back. So the next transactions may still be committed with a timestamp before or at this time",
                    where=settings.address,
                    hint="set `as_of` to an earlier time, or wait until the server's clock has passed this time, then "
                    "retry the task",
                )
            time.sleep(_POLL_SECONDS)
        # Add a mark, so that the next search does not read the same log again.
        marks = (*past.marks, prefix.mark)
        emit_commit(connection)
    if prefix is None:
        raise _refused(f"{format_micros(when)} lies before the standing slot {past.name}", past.earliest)
    remember(settings, past.name, past.record.beginning, prefix.mark, options.lock.slot_wait_seconds)
    return prefix.position


def copy_slot(connection: Connection, past: Past, name: str, position: Lsn) -> None:
    """Create the run's slot: a copy of the standing slot, advanced to ``position``.

    The server does not write an advanced slot to disk at once, so a crash could set the slot back. But it writes a new
    slot to disk at once. So this function advances a temporary copy, and creates the run's slot as a copy of the
    temporary slot.

    :raises LogGone: the standing slot is gone, or no longer has the log since ``position``.
    """
    between = f"{slots.PREFIX}past_{uuid4().hex[:12]}"
    # The server may have removed the log of the standing slot after the last check.
    with slot_errors(f"replication slot {past.name}"):
        query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (past.name, between))
    # The standing slot may have been advanced meanwhile.
    advance(connection, between, position)
    query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, false)", (between, name))
    query(connection, "SELECT pg_drop_replication_slot(%s)", (between,))
    slot_state = slots.state(connection, name)
    if slot_state is None or slot_state.lost or slot_state.confirmed != position:
        raise LogGone(
            f"the run copied the standing slot and advanced the copied slot, but the copied slot is not at {position}",
            where=f"replication slot {past.name}",
            hint=past.earliest,
        )


def _refused(what: str, hint: str) -> PreflightError:
    return PreflightError([Problem(_WHERE, what, hint)])
