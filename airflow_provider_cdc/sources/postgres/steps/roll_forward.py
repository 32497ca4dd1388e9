"""Decides whether published copies can be rolled forward, and creates the slots that keep the log for it.

PostgreSQL keeps its log only for slots. So the log since a copy exists only if the standing slot has it. Two conditions
must have held since the copy: the log has all changes of the table, and the table is unchanged. The record of the
standing slot shows both. It has a digest of each table. The digest changes whenever the table's definition, its file,
its name or its place in the publication changes, even if the change was undone.

Each run creates its own slots at the positions of the copies, as copies of the standing slot. So later changes to the
standing slot do not affect the run and its retries.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, PreflightError, Problem, SourceReplaced
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.checks.past import Past
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts, PublicationState
from airflow_provider_cdc.sources.postgres.server.server import identity, taken_over
from airflow_provider_cdc.sources.postgres.server.session import Connection, session, value
from airflow_provider_cdc.sources.postgres.slots import publications, slots
from airflow_provider_cdc.sources.postgres.steps import past, schema_changes

_SLOTS, _SLOTS_AGAIN = 3, 5
"""Number of slots that a run has at once: the run's own slot, the slot at the position of the copies, and a temporary
slot. If rows are read again, the run has these five: the first two slots, a temporary copy of each of them, and the
slot of the snapshot."""
_ANEW = (
    "clear the task `preflight` and all tasks after it: the table is then read in full, or rolled forward from "
    "another copy"
)

_log = logging.getLogger(__name__)


def refusals_since(
    settings: ConnectionSettings,
    facts: PostgresFacts,
    start: Lsn,
    tables: Sequence[Table],
    to: AsOf | None,
    options: StepOptions,
    keys_only: bool,
    bases: int,
    evolutions: dict[TableName, Evolution] | None = None,
) -> dict[TableName, str]:
    """`Source.refusals_since`."""

    def all_for(why: str) -> dict[TableName, str]:
        return dict.fromkeys((table.name for table in tables), why)

    if not options.standing_slot:
        return all_for(
            "the server keeps the log since the last copy only for a standing slot, and the option "
            "`Refresh.standing_slot` is empty"
        )
    if options.keep_slot:
        return all_for(
            "with `Read.keep_slot`, the run's slot and publication are kept and must cover the "
            "table, so the table is read"
        )
    with session(settings) as connection:
        facts = taken_over(settings, connection, facts, start)
        _check_since(connection, facts, start)
        standing = past.find_past(settings, connection, options)
        if standing is None:
            return all_for("the standing slot does not exist yet, or it was lost (see the log): this run creates it")
        if why := _beyond(standing, start):
            return all_for(why)
        end = None if to is None else past.resolve(settings, connection, standing, to, options, final=False)
        if end is not None and end < start:
            return all_for("the copy is at a later position")
        # Each additional position needs one more slot. If rows are read again, it also needs a temporary copy of this
        # slot.
        needed = _SLOTS_AGAIN + 2 * (bases - 1) if keys_only else _SLOTS + bases - 1
        limit, used = slots.room(connection, "max_replication_slots", needed)
        if (free := limit - used) < needed:
            return all_for(
                f"only {format_count(free, 'free replication slot')}, and {needed} are needed (max_replication_slots)"
            )
        starts = dict.fromkeys((table.name for table in tables), start)
        made_by = dict.fromkeys(starts, slots.without_token(facts.slot))
        now, refused, altered = schema_changes.altered_tables(
            settings, connection, standing, starts, made_by, to is not None, keys_only
        )
        if evolutions is None or keys_only or not altered:
            return refused
        since = schema_changes.SinceCopy(settings, connection, standing, start, end)
        pairs = [pair for pair in zip(tables, now, strict=True) if pair[1].name in altered]
        not_carried = schema_changes.carry(since, pairs, evolutions)
        return {name: why for name, why in refused.items() if name not in altered} | not_carried


def check_since(settings: ConnectionSettings, facts: PostgresFacts, start: Lsn) -> None:
    """`Source.check_since`."""
    with session(settings) as connection:
        facts = taken_over(settings, connection, facts, start)
        _check_since(connection, facts, start)


def keep_window(
    settings: ConnectionSettings, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
) -> InitialPoint:
    """`Source.keep_window`."""
    starts = {plan.table: Lsn.parse(plan.base_position) for plan in plans if plan.base}
    slot_names = {start: slots.name_of_try(run_id) for start in sorted({*starts.values()})}
    facts = PostgresFacts.of(point.identity)
    try:
        with session(session_setup.of_run(settings, facts, Lsn.expect(point.position))) as connection:
            standing = past.find_past(settings, connection, options)
            if standing is None:
                where = f"standing slot {options.standing_slot}"
                what = "the slot was lost after the task `preflight` ran"
                raise PreflightError([Problem(where, what, _ANEW)])
            if why := _beyond(standing, min(starts.values())):
                raise PreflightError([Problem(f"standing slot {standing.name}", why, _ANEW)])
            for start, name in slot_names.items():
                past.copy_slot(connection, standing, name, start)
            # If a table is the same now as when it joined the standing slot, it was also the same at the run's
            # position. So the log has all changes of the table up to the run's position.
            keys_only = any(plan.at_upper for plan in plans)
            made_by = {plan.table: slots.name_of(plan.base) for plan in plans if plan.base}
            tables, refused, altered = schema_changes.altered_tables(
                settings, connection, standing, starts, made_by, bounded=False, keys_only=keys_only
            )
            carried = {plan.table for plan in plans if plan.evolution is not None and not keys_only} & altered
            refused = {name: why for name, why in refused.items() if name not in carried}
            refused |= _not_carried(settings, connection, standing, starts, tables, carried, plans, point)
            if refused:
                raise PreflightError([Problem(str(table), why, _ANEW, str(table)) for table, why in refused.items()])
            published = PublicationState(standing.name)
            if keys_only:
                # The snapshot step also reads the log, through the standing slot's publication. So record the state of
                # this publication.
                relations = ",".join(str(leaf.oid) for table in tables for leaf in leaves(table))
                state = publications.members_state(connection, standing.name, relations)
                published = replace(published, state=state, relations=relations)
    except BaseException:
        # No later run would find the slots, so drop them. Raise the first error, even if a slot cannot be dropped.
        try:
            for name in slot_names.values():
                slots.drop(settings, name)
            slots.discard(settings, facts)
        except CdcError as also:
            _log.warning("Slots or publications of this run may be left on the server: %s", also)
        raise
    return replace(point, identity=replace(facts, forward_slots=slot_names, standing=published).recorded())


def _check_since(connection: Connection, facts: PostgresFacts, start: Lsn) -> None:
    """Check that this is the server on which a copy was made, and that its log includes the copy's position ``start``.

    :raises SourceReplaced: this is another server, or its log ends before ``start``.
    """
    # Another version of PostgreSQL may format values differently.
    here, then = ({**one.of_server, "version": one.version} for one in (identity(connection), facts))
    for name in here:
        if here[name] != then[name]:
            raise SourceReplaced(
                f"the copy was made from a server whose {name} is {then[name]}, but the {name} of this server "
                f"is {here[name]}",
                where=name,
                hint="set `refresh` to `full`, so that the run reads the tables in full",
            )
    flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
    if flushed < start:
        raise SourceReplaced(
            f"the server's log ends at {flushed}, before the copy's position {start}",
            where=f"{start}",
            hint="the server has lost a part of its history: set `refresh` to `full`, so that the run reads the "
            "tables in full",
        )


def _beyond(standing: Past, start: Lsn) -> str:
    """Return the reason why the standing slot does not have the log since ``start``. Empty: the slot has the log."""
    if standing.confirmed <= start:
        return ""
    return f"the standing slot {standing.name} reaches back to {standing.confirmed}, but the copy is at {start}"


def _not_carried(
    settings: ConnectionSettings,
    connection: Connection,
    standing: Past,
    starts: Mapping[TableName, Lsn],
    tables: Sequence[Table],
    altered: Collection[TableName],
    plans: Sequence[TablePlan],
    point: InitialPoint,
) -> dict[TableName, str]:
    """Return the reasons why the schema changes of ``altered`` tables, which the plans have, cannot be carried."""
    evolutions = {plan.table: plan.evolution for plan in plans if plan.evolution is not None}
    refused: dict[TableName, str] = {}
    for start in {*starts.values()}:
        carried = [table for table in tables if table.name in altered and starts[table.name] == start]
        if carried:
            since = schema_changes.SinceCopy(settings, connection, standing, start, Lsn.expect(point.position))
            refused |= schema_changes.still_carried(since, carried, evolutions)
    return refused
