"""Fixes the initial position, opens the shared snapshot for reading tables, and determines the position after the
reads.

``exported`` follows the design of Materialize: the driver opens a transaction whose snapshot is exactly at the
consistent point of a temporary slot. The driver exports the snapshot and keeps the transaction open while every task
imports the snapshot. So all tasks read at one known position.

``watermark`` needs no such transaction: ``core.tables.net_change`` explains why each chunk may be read at a different
time. ``again`` reads chunks in the same way as ``watermark``. At the end, a run with ``again`` reads the changed rows
once more by their keys, in an exported snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_cdc.core.checks import Moment
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import (
    PreflightError,
    SchemaChanged,
    SourceReplaced,
    SourceUnavailable,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import (
    followed,
    identity_problem,
    needs_log,
    no_identity,
)
from airflow_provider_cdc.sources.postgres.catalog.schema import (
    HINT,
    check_whole,
    present_tables,
    read_tables,
    why_not_empty,
)
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import (
    AT_UPPER,
    came_since,
    changed_around,
    changed_since,
    difference,
    partitions_changed,
    read_at,
)
from airflow_provider_cdc.sources.postgres.checks.asked import check_fixed, check_settings
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    SharedView,
    query,
    session,
    shared_view_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.slots import publications, slots, waits
from airflow_provider_cdc.sources.postgres.slots.standbys import slot_on_standby

_TRIES = 3


def record_initial(
    settings: ConnectionSettings,
    plans: Sequence[TablePlan],
    lock: LockPolicy,
    run_id: str,
    publication: str = "",
) -> InitialPoint:
    """Create the publication and the slot, and read the schemas. The slot's point is the initial position.

    The log has no DDL. So the schemas are read before and after the point, and both must be equal to the catalog at the
    point itself (`read_at`). If the tables were altered meanwhile, there is another try with another slot. So an error
    of a try counts only if the tables are still the same.

    :param publication: an existing publication to use. Empty: this function creates a publication.
    :raises LockNotGranted: transactions delayed the slot or the publication's locks for longer than the policy allows.
    :raises PreflightError: the server's settings were changed since preflight, or a table can no longer be copied.
    :raises SchemaChanged: a table is gone, a table no longer fits its plan, or tables keep changing.
    :raises SourceUnavailable: the publication was altered meanwhile.
    """
    name = slots.name_of_try(run_id)
    fixing = _Fixing(settings, plans, lock, run_id, name, publication)
    try:
        for _ in range(_TRIES):
            with session(settings) as connection:
                check_settings(connection, Moment.POSITION_FIXED)
                # List the slots now, because only slots that already exist may be dropped later. If a try begins later,
                # the manifest may record the position of its slot.
                earlier = slots.names_of_run(connection, run_id)
                before = read_catalog(connection, fixing.read_before)
                try:
                    point, changes = fixing.fix(connection, before)
                except (SchemaChanged, PreflightError, SourceUnavailable) as error:
                    # A table that is dropped also leaves the publication.
                    if not _were_altered(connection, before):
                        raise
                    point, changes = None, [str(error)]
            if point is not None and not changes:
                return replace(point, superseded=slots.superseded(earlier))
            slots.drop(settings, name, name)
        raise SchemaChanged(
            f"in each of {_TRIES} tries, the tables were altered while the position was fixed",
            where="; ".join(changes),
            hint="wait until the DDL has ended, then trigger a new run",
        )
    except BaseException:
        slots.drop_after_error(settings, name, name)
        raise


@dataclass(frozen=True)
class _Fixing:
    """A position to fix for tables, with a slot and a publication.

    ``name``: the name of the slot, and of the publication that the run creates. ``publication``: as in
    `record_initial`.
    """

    settings: ConnectionSettings
    plans: Sequence[TablePlan]
    lock: LockPolicy
    run_id: str
    name: str
    publication: str

    @property
    def _names(self) -> list[TableName]:
        return [plan.table for plan in self.plans]

    def read_before(self, catalog: Catalog) -> tuple[Table, ...]:
        """Return the tables before the slot exists.

        :raises PreflightError: a table has a relation that cannot be copied.
        """
        tables = read_tables(catalog, self._names)
        check_fixed(catalog, tables, self.plans)
        return tables

    def fix(self, connection: Connection, before: Sequence[Table]) -> tuple[InitialPoint, list[str]]:
        """Create the publication and the slot. Return the slot's point, and what was altered meanwhile."""
        seconds, mine = self.lock.slot_wait_seconds, self.publication or self.name
        if not self.publication:
            logged = [table for plan, table in zip(self.plans, before, strict=True) if needs_log(plan)]
            publications.create_publication(connection, self.name, logged, self.lock, self.run_id)
        facts = identity(connection)
        state = publications.publication_state(connection, mine)
        since = publications.now(connection)
        started = replace(facts, started=value(connection, session_setup.START))
        with self._slot(connection, session_setup.of_run(self.settings, started)) as (position, view):
            # Wait before anything is read in the slot's own snapshot. In that snapshot, a transaction whose commit is
            # in the log but not yet in pg_xact counts as aborted. A reader would permanently mark the rows of the
            # transaction as aborted.
            waits.wait_until_visible(self.settings, connection, seconds)
            at_point = read_at(connection, view, self._names)
        facts = slots.with_slot(facts, self.name, self.publication)
        members = replace(facts.publication, state=state)
        facts = replace(facts, publication=members, since=None if self.publication else since)
        tables = read_catalog(connection, lambda catalog: self._read_after(catalog, state))
        # A crash must not undo the table definitions that the run relies on. The slot's point is safe from a crash,
        # because the server decoded it from log that is on disk.
        waits.wait(partial(query, connection), self.settings.address)
        changes = [
            f"{old.name}: {what}"
            for old, new in zip(before, tables, strict=True)
            if (what := difference(old, new) or changed_around(at_point.get(new.name), new))
        ]
        planned = tuple(_planned(table, plan) for plan, table in zip(self.plans, tables, strict=True))
        return InitialPoint(position, facts.recorded(), planned, 0.0), changes

    @contextmanager
    def _slot(self, connection: Connection, here: session_setup.RunSettings) -> Iterator[tuple[Lsn, str]]:
        """Create the slot. Yield its point, and the name of a snapshot at this point."""
        seconds = self.lock.slot_wait_seconds
        if self.settings.log_server is None:
            with slots.new_slot(here, self.name, seconds) as made:
                _check_made(connection, self.name, made[0])
                yield made
            return
        # A copy of the source does not have this slot. So sessions of the run find out whether they reach the source.
        query(connection, "SELECT pg_create_physical_replication_slot(%s)", (self.name,))
        here = replace(here, server=replace(here.server, slot=self.name))
        with slot_on_standby(here, self.name, seconds) as made:
            yield made

    def _read_after(self, catalog: Catalog, state: str) -> list[Table]:
        """Return the tables after the slot's point. Check that from this point on, the log has every change that the
        run needs.

        :param state: the state of the publication before the slot was created.
        """
        mine = self.publication or self.name
        found = read_tables(catalog, self._names, mine)
        tables = [replace(table, selection=plan.selection) for plan, table in zip(self.plans, found, strict=True)]
        check_whole(catalog, tables)
        # Since PostgreSQL 18, the server sends nothing for a publication that does not exist, and raises no error.
        if publications.publication_state(catalog, mine) != state or (not self.publication and not state):
            raise SourceUnavailable(
                "the publication was altered or dropped while the position was fixed",
                where=f"publication {mine}",
                hint="do not alter the publication, then retry the task"
                if self.publication
                else "a concurrent try may already have fixed the position: retry the task",
            )
        # The publication and the tables may have changed since preflight.
        check_fixed(catalog, tables, self.plans, mine)
        _check_plans(catalog, self.plans, tables, self.publication)
        return tables


def _were_altered(connection: Connection, before: Sequence[Table]) -> bool:
    """Return whether tables were altered or replaced since they were read, even if only for a while."""
    try:
        now = present_tables(connection, [table.name for table in before])
    except SchemaChanged:
        return True
    return any(
        difference(old, new) or old.details["version"] != new.details["version"]
        for old, new in zip(before, now, strict=True)
    )


def _planned(table: Table, plan: TablePlan) -> Table:
    details = {**table.details, AT_UPPER: True} if plan.at_upper else dict(table.details)
    if needs_log(plan):
        details[publications.FOLLOWED] = True
    return replace(table, options=plan.options, details=details)


def _check_made(connection: Connection, name: str, position: Lsn) -> None:
    slot_state = slots.state(connection, name)
    if slot_state is None or slot_state.confirmed != position:
        raise SourceReplaced(
            "the slot was created on one server, but the tables are read from another server",
            where=f"replication slot {name}",
            hint="point the connection at one server only (no load balancer over several), and trigger a new run",
        )


def _check_plans(catalog: Catalog, plans: Sequence[TablePlan], tables: Sequence[Table], publication: str) -> None:
    hint = "clear the task `preflight` and all tasks after it"
    for plan, table, followed_table in zip(plans, tables, followed(catalog, tables, publication), strict=True):
        if plan.at_upper:
            if needs_log(plan) and not followed_table:
                raise SchemaChanged(
                    "the log no longer has the keys of the table's changed rows",
                    where=str(table.name),
                    hint=f"{no_identity(table)}, and {hint}",
                )
            continue
        if table.keyless and plan.consistency == "watermark":
            raise SchemaChanged(
                "the consistency `watermark` needs a key, but the table lost its key after the task `preflight` ran",
                where=str(table.name),
                hint=hint,
            )
        if problem := identity_problem(table):
            raise SchemaChanged(problem.what, where=problem.where, hint=problem.hint)


@contextmanager
def share_view(settings: ConnectionSettings, lock: LockPolicy) -> Iterator[SharedView]:
    """Export one snapshot for many sessions, at an exactly known position. The snapshot can be used while the context
    is open.

    :raises LockNotGranted: transactions delayed the snapshot for too long.
    :raises SourceUnavailable: the server has no free slots or sessions.
    """
    seconds = lock.slot_wait_seconds
    slot = f"{slots.PREFIX}read_{uuid.uuid4().hex[:12]}"
    with session(settings, replication=True) as leader:
        query(leader, "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        sql = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL {slots.PLUGIN} (SNAPSHOT 'use')"
        upper, _ = waits.consistent_point(settings, leader, sql, seconds)
        # From now on, the transaction keeps the rows of its snapshot. The slot would only keep log.
        query(leader, f"SELECT pg_catalog.pg_drop_replication_slot('{slot}')")
        with session(settings) as connection:
            waits.wait_until_visible(settings, connection, seconds)
        yield SharedView(str(value(leader, "pg_export_snapshot()")), upper)


def bound_view(settings: ConnectionSettings, view: SharedView, tables: Sequence[Table]) -> UpperBound:
    """Return the position of a shared view, after checking that ``tables`` are unchanged at that position.

    :raises SchemaChanged: a table is different.
    """
    with session(settings) as connection:
        with shared_view_errors(settings.address):
            catalog_tables = read_at(connection, view.snapshot, [table.name for table in tables])
        for table in tables:
            there = catalog_tables.get(table.name)
            what = changed_since(there, table)
            if not what and there is not None and (came := came_since(there, table)):
                with shared_view_errors(settings.address):
                    what = why_not_empty(connection, view.snapshot, came)
            if not what and "reads" in table.details:
                with shared_view_errors(settings.address):
                    if partitions_changed(connection, view.snapshot, table):
                        what = "a table that it reads had other partitions or child tables for a while"
            if what:
                raise SchemaChanged(what, where=f"{table.name} at {view.upper}", hint=HINT)
        # This session could import the snapshot, so this server exported it and has not been restarted since.
        _, incarnation = waits.wait(partial(query, connection), settings.address)
        return UpperBound(view.upper, waits.log_end(view.upper), incarnation)


def bound_reads(settings: ConnectionSettings) -> UpperBound:
    """Return the end of the log, which is an upper bound for all transactions that earlier reads could have seen.

    A commit is in the log before it is visible, but may not be on disk yet (``synchronous_commit=off``). Only log that
    is on disk can be decoded, so this function waits until the log is on disk. It writes a mark into the log before the
    end. When the log is read later, the log must still contain the mark.

    :raises SourceUnavailable: the server does not flush its log.
    """
    with session(settings) as connection:
        mark = waits.write(partial(query, connection))
        end, incarnation = waits.wait(partial(query, connection), settings.address)
        return UpperBound(end, waits.log_end(end, mark), incarnation)
