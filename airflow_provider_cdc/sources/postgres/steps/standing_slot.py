"""Creates and advances the standing slot. Because of this slot, PostgreSQL keeps its log from run to run.

A server keeps its log only for slots. The first run that uses a standing slot creates the slot and a publication of the
same name. Both stay after the run. A table joins the publication when a run first needs the table. A position is fixed
right after the join, and the log has the table's changes from this position on. Runs read a copy of the slot. The slot
itself advances only when a run is published. It then advances to the oldest position that is still needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import psycopg

from airflow_provider_cdc.core.checks import Moment
from airflow_provider_cdc.core.options.run import FULL, StepOptions
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import (
    ConfigurationError,
    LogGone,
    SchemaChanged,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import joining
from airflow_provider_cdc.sources.postgres.catalog.schema import read_tables
from airflow_provider_cdc.sources.postgres.checks.asked import check_settings
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote, session, value
from airflow_provider_cdc.sources.postgres.slots import publications, slots, waits
from airflow_provider_cdc.sources.postgres.slots.commits import advance, prefix_at
from airflow_provider_cdc.sources.postgres.slots.standing_record import (
    Join,
    Joined,
    Mark,
    Standing,
    alone,
    format_micros,
    frames_of,
    ground,
    load,
    load_to_change,
    name_of,
    now,
    publication_version,
    shapes_of,
    states_of,
    store,
    why_gone,
    why_of_another,
)

# Reports what a standing slot costs the server.


_A_DAY = 26 * 3600
"""The number of seconds for which a slot may be idle if only nightly runs use it."""

_log = logging.getLogger(__name__)


def log_retained_log(connection: Connection, name: str, record: Standing) -> None:
    """Report how much of the server's log the standing slot keeps. Warn of settings that would invalidate the slot, or
    that leave the size of the kept log unlimited."""
    slot = slots.state(connection, name)
    if slot is None:
        return
    marks = record.since(slot.confirmed)
    _log.info(
        "The standing slot %s keeps %.1f MB of log (wal_status %s) and dead rows of the catalog; the past reaches back "
        "to %s, %s. If the slot is no longer needed: SELECT pg_drop_replication_slot('%s'); DROP PUBLICATION %s;",
        name,
        (slot.kept_bytes or 0) / 1e6,
        slot.wal_status,
        slot.confirmed,
        format_micros(marks[0].latest) if marks else "an unknown time",
        name,
        quote(name),
    )
    slots.warn_if_short(slot)
    limits = dict(
        query(
            connection,
            "SELECT name, setting::bigint FROM pg_settings "
            "WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout')",
        )
    )
    if limits["max_slot_wal_keep_size"] < 0:
        _log.warning(
            "max_slot_wal_keep_size is -1, so the log that the standing slot %s keeps has no limit. If no run is "
            "published for a long time, the log fills the server's disk. Set the limit to what the disk can spare",
            name,
        )
    if 0 < (idle := limits.get("idle_replication_slot_timeout", 0)) < _A_DAY:
        _log.warning(
            "idle_replication_slot_timeout is %d s: the server removes the log of the standing slot %s if no run uses "
            "the slot for that long. Set it to 0, or to more than the longest time between two runs",
            idle,
            name,
        )


_TRIES = 3
_HOUR = 3_600_000_000


def keep_past(settings: ConnectionSettings, plans: Sequence[TablePlan], options: StepOptions) -> None:
    """`Source.keep_past`.

    :raises ConfigurationError: the connection specifies a publication.
    """
    if settings.options.get("publication"):
        raise ConfigurationError(
            "runs add tables to the publication of a standing slot, so the connection must not name a publication",
            where="parameter standing_slot (Refresh.standing_slot)",
            hint="use a connection whose user owns the tables, and leave the field publication of the connection empty",
        )
    with session(settings) as connection:
        check_settings(connection, Moment.PREFLIGHT)
        name = name_of(connection, options.standing_slot)
        alone(connection, name, options.lock.slot_wait_seconds)
        record = usable(settings, connection, name)
        if record is None:
            # Runs in progress may read through the publication. So drop the publication only if its comment has no
            # readable record.
            slots.drop(settings, name, "" if load(connection, name) else name)
        else:
            _take_over(connection, name, record)
            slots.allow_failover(settings, connection, name)
            _stay_in_use(connection, name, options.lock.slot_wait_seconds)
        publications.let_go(connection, name)
        try:
            record = _join(settings, connection, name, record, plans, options)
        except BaseException:
            if record is None:
                # Drop the slot after any error, because a slot without a record would keep the log unnecessarily.
                slots.drop_after_error(settings, name, name)
            raise
        log_retained_log(connection, name, record)


def usable(settings: ConnectionSettings, connection: Connection, name: str) -> Standing | None:
    """Return the record of a standing slot if the record is valid. Otherwise, return None and write the reason to the
    task log. If there is neither a record nor a slot, write nothing.

    If a standby took over, and had the slot, the record is that of the present server.
    """
    record, slot, server_now = load(connection, name), slots.state(connection, name), ground(connection)
    if record is None and slot is None:
        return None
    lost = ""
    if record is None:
        lost = "its publication, or the comment on the publication that has its record, is gone"
    elif slot is None:
        lost = why_gone(record, server_now)
    elif slot.lost:
        lost = f"the server removed its log (wal_status {slot.wal_status}): {slot.remedy}"
    elif why := why_of_another(settings, record, server_now):
        lost = f"it was created on another server: {why}"
    elif not record.since(slot.confirmed):
        lost = f"another client advanced it, to {slot.confirmed}"
    elif query(connection, _STRANGE, (name, slots.PLUGIN)):
        lost = "another client created a slot of that name"
    elif record.publication and record.publication != publication_version(connection, name):
        # Before PostgreSQL 18, the log since the slot cannot be decoded if the publication had another name meanwhile.
        # No table has a past from before the change, so nothing else is lost.
        lost = "its publication was altered, renamed or created again"
    elif not slots.begins(connection, name):
        lost = "the files of its log are missing from the server's pg_wal"
    if record is not None and not lost:
        return replace(record, server=server_now)
    _log.warning(
        "THE PAST IS LOST: the server no longer has the log up to now. The next run creates a new standing slot %s: %s",
        name,
        lost,
    )
    return None


def _take_over(connection: Connection, name: str, record: Standing) -> None:
    """Record the present server, if it took over. So later forks are compared only with positions of its history."""
    before = load(connection, name)
    if before is not None and before.server != record.server:
        store(connection, name, record)
        _log.info("A standby has taken over since the last run, and the standing slot %s goes on", name)


_STRANGE = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND (plugin <> %s OR temporary OR two_phase)"


def note_position(settings: session_setup.RunSettings, options: StepOptions) -> None:
    """`Source.note_position`.

    The session has found the run's slot at the position. So the history of this server includes the position. If the
    server's disk is later reset to a moment after this call, the history still includes the position.

    :param settings: the settings of the run's sessions, with its initial position.
    """
    with session(settings) as connection:
        name = name_of(connection, options.standing_slot)
        alone(connection, name, options.lock.slot_wait_seconds)
        if (record := load_to_change(settings, connection, name)) is not None:
            store(connection, name, record.with_run(settings.server.slot, settings.position, now(connection)))


def note_copies(
    settings: ConnectionSettings, options: StepOptions, copies: Mapping[str, Mapping[str, Lsn]], incarnation: str
) -> None:
    """`Source.note_copies`.

    If the server's disk was reset to a moment before the run, its identity is the same, but the run's slot is missing.
    Every session of a run checks that this slot exists. If the disk was reset to a moment during the run, the server
    was restarted. If the run's slot is gone because the copies are already recorded, do nothing.
    """
    try:
        _note_copies(settings, options, copies, incarnation)
    except LogGone:
        if not (isinstance(settings, session_setup.RunSettings) and _are_noted(settings, options, copies)):
            raise


def _are_noted(
    settings: session_setup.RunSettings, options: StepOptions, copies: Mapping[str, Mapping[str, Lsn]]
) -> bool:
    """Return whether all of ``copies`` are already recorded on the server of the run."""
    with session(replace(settings, server=replace(settings.server, slot=""))) as connection:
        record = load(connection, name_of(connection, options.standing_slot))
    noted = {
        (lake, table, Lsn.parse(copy_noted.position))
        for lake, identity_value in (record.copies if record is not None else {}).items()
        for copy_noted in identity_value
        for table in copy_noted.tables
    }
    expected = {
        (_digest(lake), table, position) for lake, positions in copies.items() for table, position in positions.items()
    }
    return record is not None and expected <= noted


def _digest(lake: str) -> str:
    return records.digest_of(lake)[:12]


def _note_copies(
    settings: ConnectionSettings, options: StepOptions, copies: Mapping[str, Mapping[str, Lsn]], incarnation: str
) -> None:
    if incarnation and isinstance(settings, session_setup.RunSettings):
        settings = replace(settings, server=replace(settings.server, started=incarnation))
    with session(settings) as connection:
        name = name_of(connection, options.standing_slot)
        alone(connection, name, options.lock.slot_wait_seconds)
        if (record := usable(settings, connection, name)) is not None:
            at = now(connection)
            for lake, positions in copies.items():
                record = record.with_copies(_digest(lake), positions, at, options.refresh != FULL)
            if isinstance(settings, session_setup.RunSettings):
                record = record.without_run(settings.server.slot)
            store(connection, name, record)


def give_up_past(settings: ConnectionSettings, options: StepOptions) -> None:
    """`Source.give_up_past`."""
    with session(settings) as connection:
        name = name_of(connection, options.standing_slot)
        alone(connection, name, options.lock.slot_wait_seconds)
        record, slot = usable(settings, connection, name), slots.state(connection, name)
        if record is None or slot is None:
            return
        clock = now(connection)
        oldest = clock - options.standing_slot_hours * _HOUR
        marks, wanted = record.since(slot.confirmed), record.wanted(slot.confirmed)
        # A commit time in the future must not hold the slot until then, because the server keeps the log meanwhile.
        prefix = prefix_at(settings, name, marks, record.joins, oldest, wanted, clock)
        if prefix is None or not prefix.mark.latest or (there := Lsn.parse(prefix.mark.position)) == slot.confirmed:
            return
        _move_on(connection, name, there, options.lock.slot_wait_seconds)
        record = record.with_mark(prefix.mark)
        joins = tuple(join for join in record.joins if Lsn.parse(join.position) >= there)
        store(connection, name, replace(record, marks=record.since(there), joins=joins))
        _log.info(
            "The standing slot %s was advanced: log that is older than %s is no longer kept",
            name,
            format_micros(oldest),
        )


def _stay_in_use(connection: Connection, name: str, seconds: float) -> None:
    """Use the slot for a moment, if the server invalidates slots that are not used for some time. A run reads copies of
    the slot, which is no use of the slot itself."""
    if value(connection, "COALESCE(current_setting('idle_replication_slot_timeout', true), '0')") != "0":
        # A session that uses the slot now has the same effect.
        with suppress(psycopg.errors.ObjectInUse), slots.waiting_for_standbys(connection, name, seconds):
            query(
                connection,
                "SELECT pg_replication_slot_advance(slot_name, confirmed_flush_lsn) FROM pg_replication_slots "
                "WHERE slot_name = %s",
                (name,),
            )


def _move_on(connection: Connection, name: str, there: Lsn, seconds: float) -> None:
    """Advance the slot to ``there``."""
    with slots.waiting_for_standbys(connection, name, seconds):
        advance(connection, name, there)


def _join(
    settings: ConnectionSettings,
    connection: Connection,
    name: str,
    record: Standing | None,
    plans: Sequence[TablePlan],
    options: StepOptions,
) -> Standing:
    """Add to the publication all tables that can join it, and create the slot if there is none. Then record the
    position and the time of the join."""
    names = [plan.table for plan in plans]

    def present(catalog: Catalog) -> tuple[list[Table], dict[str, str], dict[str, str]]:
        tables = joining(catalog, read_tables(catalog, names))
        return tables, frames_of(catalog, name, tables), states_of(catalog, name, tables)

    tables, frames, states = read_catalog(connection, present)
    recorded_states = record.tables if record is not None else {}
    held = {name for name, joined in recorded_states.items() if states.get(name) == joined.state}
    new = [table for table in tables if str(table.name) not in held]
    if record is not None:
        record = _with_frames(connection, name, record, {table: frames[table] for table in held})
        if not new:
            return record
    if record is None and not publications.publication_state(connection, name):
        publications.create_publication(connection, name, [], options.lock)
    publications.add_tables(connection, name, new, options.lock)

    def joined_tables(catalog: Catalog) -> tuple[dict[str, str], dict[str, str], dict[str, str], str]:
        there = read_tables(catalog, [table.name for table in new])
        states, shapes = states_of(catalog, name, there), shapes_of(catalog, name, there)
        return states, shapes, frames_of(catalog, name, there), publication_version(catalog, name)

    for _ in range(_TRIES):
        before, shapes, frames, publication = read_catalog(connection, joined_tables)
        position = _point(settings, connection, name if record is None else "", options)
        at = now(connection)
        after, _, _, publication_after = read_catalog(connection, joined_tables)
        if (before, publication) == (after, publication_after):
            break
        if record is None:
            slots.drop(settings, name)
    else:
        raise SchemaChanged(
            f"in each of {_TRIES} tries, the tables were altered while the run added them to the standing slot",
            where=", ".join(str(table.name) for table in new),
            hint="wait until the DDL has ended, then clear the task",
        )
    if record is None:
        _log.info("Created the standing slot %s: it retains the log from %s, %s on", name, position, format_micros(at))
        record = Standing(uuid4().hex, ground(connection), (Mark(str(position), at),))
    joined = dict(record.tables)
    for table in new:
        old = joined.get(str(table.name))
        why = (
            "it joined the standing slot then"
            if old is None
            else f"it was altered between {format_micros(old.at)} and then"
        )
        shape = shapes[str(table.name)]
        since = (old.shape_position, old.shape_at) if old is not None and old.shape == shape else (str(position), at)
        frame = frames[str(table.name)]
        framed = old.frame_position if old is not None and old.frame == frame else str(position)
        joined[str(table.name)] = Joined(str(position), at, before[str(table.name)], why, shape, *since, frame, framed)
        _log.info(
            "%s: the standing slot covers the table from %s, %s on: %s", table.name, position, format_micros(at), why
        )
    record = replace(
        record,
        tables=joined,
        joins=(*record.joins, Join(str(position), at)),
        publication=record.publication or publication,
    )
    store(connection, name, record)
    return record


def _with_frames(connection: Connection, name: str, record: Standing, frames: Mapping[str, str]) -> Standing:
    """Set the frames of tables that have not changed since they joined, possibly under an earlier version of the
    provider, whose digests of frames were different or empty."""
    added = {
        table: replace(record.tables[table], frame=frame, frame_position=record.tables[table].position)
        for table, frame in frames.items()
        if record.tables[table].frame != frame
    }
    if added:
        record = replace(record, tables={**record.tables, **added})
        store(connection, name, record)
    return record


def _point(settings: ConnectionSettings, connection: Connection, slot: str, options: StepOptions) -> Lsn:
    """Return a position after the commits of all transactions that began before this call.

    So every transaction that commits after the position began after this call. The log has the changes of such
    transactions as the current publication defines.

    :param slot: the name of a permanent slot to create at the position. Empty: create only a temporary slot.
    """
    facts = replace(identity(connection), started=value(connection, session_setup.START))
    here = session_setup.of_run(settings, facts)
    name, kind = (slot, "") if slot else (f"{slots.PREFIX}since_{uuid4().hex[:12]}", "TEMPORARY ")
    allowed = ", FAILOVER true" if slot and slots.may_fail_over(connection) else ""
    sql = f"CREATE_REPLICATION_SLOT {quote(name)} {kind}LOGICAL {slots.PLUGIN} (SNAPSHOT 'export'{allowed})"
    with session(here, replication=True) as leader:
        position, _ = waits.consistent_point(settings, leader, sql, options.lock.slot_wait_seconds)
    return position
