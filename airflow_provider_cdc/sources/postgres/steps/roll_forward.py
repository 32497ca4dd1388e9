"""Whether published copies can be rolled forward by the log, and the slots that keep the part of it that does so.

PostgreSQL keeps its log for slots only: that of the time since a copy is there if the standing slot has it. What has to
hold since then is what has to hold during a run: that the log tells all changes of the table, and that the table is
what it was. The record of the standing slot says both, by a digest of the table that is another one after any change to
its definition, its file, its name or its place in the publication, even one that was undone.

Each run makes slots of its own at the positions of the copies, as copies of the standing one. So it does not matter to
the run and its retries what becomes of that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import CdcError, PreflightError, Problem, SourceReplaced
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.partition_bounds import without_room
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import followed, identity_problem
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves, read_tables
from airflow_provider_cdc.sources.postgres.checks.past import Past
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.server import identity as identity_of
from airflow_provider_cdc.sources.postgres.server.session import Connection, session, value
from airflow_provider_cdc.sources.postgres.slots import run_publication, slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import KNOWN_DAYS, parents_among, said, states_of
from airflow_provider_cdc.sources.postgres.steps import past

_SLOTS, _SLOTS_AGAIN = 3, 5
"""That a run has at once: its own, the one at the position of the copies, and a temporary one; where rows are read
again, temporary copies of both and that of the view."""
_ANEW = "clear preflight and the tasks after it: the table is then read in full, or rolled forward from another copy"

_log = logging.getLogger(__name__)


def refusals_since(
    settings: ConnectionSettings,
    identity: Mapping[str, str],
    start: Lsn,
    tables: Sequence[Table],
    to: AsOf | None,
    options: StepOptions,
    keys_only: bool,
    bases: int,
) -> dict[TableName, str]:
    """`RollsForward.refusals_since`."""

    def all_for(why: str) -> dict[TableName, str]:
        return dict.fromkeys((table.name for table in tables), why)

    if not options.standing_slot:
        return all_for("the server keeps the log since its last copy only for a standing slot (option standing_slot)")
    if options.keep_slot:
        return all_for("keep_slot leaves a slot and a publication, which are to tell of it as of a table that is read")
    with session(settings) as connection:
        _check_since(connection, identity, start)
        standing = past.find_past(connection, options)
        if standing is None:
            return all_for("there is no standing slot yet, or it was lost (the log says why): this run has one made")
        if why := _beyond(standing, start):
            return all_for(why)
        if to is not None and past.resolve(settings, connection, standing, to, options, final=False) < start:
            return all_for("the copy is of a later position")
        # Each further position takes one more, and where rows are read again a temporary copy of it.
        needed = _SLOTS_AGAIN + 2 * (bases - 1) if keys_only else _SLOTS + bases - 1
        limit, used = slots.room(connection, "max_replication_slots", needed)
        if (free := limit - used) < needed:
            return all_for(
                f"only {counted(free, 'free replication slot')}, and {needed} are needed (max_replication_slots)"
            )
        now = read_tables(connection, [table.name for table in tables])
        starts = dict.fromkeys((table.name for table in now), start)
        made_by = dict.fromkeys(starts, slots.without_token(identity.get("slot", "")))
        return _altered(connection, standing, starts, made_by, now, to, keys_only)


def check_since(settings: ConnectionSettings, identity: Mapping[str, str], start: Lsn) -> None:
    """`RollsForward.check_since`."""
    with session(settings) as connection:
        _check_since(connection, identity, start)


def keep_window(
    settings: ConnectionSettings, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
) -> InitialPoint:
    """`KeepsWindow.keep_window`."""
    starts = {plan.table: Lsn.parse(plan.base_position) for plan in plans if plan.base}
    slot_names = {start: slots.name_of_try(run_id) for start in sorted({*starts.values()})}
    try:
        with session(session_setup.of_run(settings, point.identity, Lsn.expect(point.position))) as connection:
            standing = past.find_past(connection, options)
            if standing is None:
                where, what = f"standing slot {options.standing_slot}", "it was lost since preflight"
                raise PreflightError([Problem(where, what, _ANEW)])
            if why := _beyond(standing, min(starts.values())):
                raise PreflightError([Problem(f"standing slot {standing.name}", why, _ANEW)])
            for start, name in slot_names.items():
                past.copy_slot(connection, standing, name, start)
            # What is as it was when it joined has been so at the run's position, and so has the log of it.
            tables, keys_only = read_tables(connection, list(starts)), any(plan.at_upper for plan in plans)
            made_by = {plan.table: slots.name_of(plan.base) for plan in plans if plan.base}
            if altered := _altered(connection, standing, starts, made_by, tables, None, keys_only):
                raise PreflightError([Problem(str(table), why, _ANEW, str(table)) for table, why in altered.items()])
            identity = slots.with_forward_slots(point.identity, slot_names, standing.name)
            if keys_only:
                # Its log is read until the reads end.
                relations = ",".join(str(leaf.oid) for table in tables for leaf in leaves(table))
                state = run_publication.publication_state(connection, standing.name, relations)
                identity |= {"standing_relations": relations, "standing_state": state}
    except BaseException:
        # Nobody would ever find them, so they must not stay. The first error is the one to raise.
        try:
            for name in slot_names.values():
                slots.drop(settings, name)
            slots.discard(settings, point.identity)
        except CdcError as also:
            _log.warning("What was made for the run may be left: %s", also)
        raise
    return replace(point, identity=identity)


def _check_since(connection: Connection, identity: Mapping[str, str], start: Lsn) -> None:
    """Make sure that this is the server that a copy is of, with all of its history since.

    :raises SourceReplaced: it is not.
    """
    server_identity = identity_of(connection)
    # Another version may print values otherwise.
    for name in (*session_setup.OF_THE_SERVER, "version"):
        if server_identity[name] != identity.get(name):
            raise SourceReplaced(
                f"the copy was made where {name} is {identity.get(name)}, and here it is {server_identity[name]}",
                where=name,
                hint="read the tables in full (refresh=full)",
            )
    flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
    if flushed < start:
        raise SourceReplaced(
            f"the log reaches to {flushed} only, and the copy is of {start}",
            where=f"{start}",
            hint="the server lost what it had: read the tables in full (refresh=full)",
        )


def _beyond(standing: Past, start: Lsn) -> str:
    """Why the standing slot does not have the log since ``start``; empty if it has."""
    if standing.confirmed <= start:
        return ""
    return f"the standing slot {standing.name} reaches back to {standing.confirmed}, and the copy is of {start}"


def _altered(
    connection: Connection,
    standing: Past,
    starts: Mapping[TableName, Lsn],
    made_by: Mapping[TableName, str],
    tables: Sequence[Table],
    to: AsOf | None,
    keys_only: bool,
) -> dict[TableName, str]:
    """Why copies of tables cannot be rolled forward from ``starts``, by what the record of the standing slot says.

    :param made_by: what the names of the slots of the runs begin with that made the copies.
    :param tables: as they are now.
    :param keys_only: the keys of what was touched are all that is wanted of the log.
    """
    told = (
        dict(zip((table.name for table in tables), followed(connection, tables, standing.name), strict=True))
        if keys_only
        else {}
    )
    states = states_of(connection, standing.name, tables)
    # What a tree was at a position between the copy and now cannot be known, unless it has no room for more partitions;
    # at both ends it is.
    parents: set[str] = set()
    if to is not None:
        parents = {str(table.name) for table in tables if table.details["kind"] == "p"}
        parents |= parents_among(connection, tables)
        parents -= without_room(connection, tables)
    reasons = {}
    for table in tables:
        name = str(table.name)
        joined = standing.record.tables.get(name)
        if keys_only and not told[table.name]:
            reasons[table.name] = "the log tells no key of its changed rows"
        elif not keys_only and (problem := identity_problem(table)) is not None:
            reasons[table.name] = problem.what
        elif name in parents:
            reasons[table.name] = "it has partitions or children, and what these were at a past position is not known"
        elif joined is None:
            reasons[table.name] = f"the standing slot {standing.name} does not tell of it yet: it does from this run on"
        elif not standing.record.has_copy(name, starts[table.name], made_by[table.name]):
            # Only a session that found the run's own slot records one: so this history has the position of the copy.
            reasons[table.name] = (
                f"the standing slot {standing.name} has no record of the copy at {starts[table.name]}: the server's "
                f"disk was restored to an earlier state, or the copy is older than {KNOWN_DAYS} days, or its run had "
                "not this standing slot, or could not record it (then the log of its consolidate has a warning)"
            )
        elif joined.state != states[name]:
            reasons[table.name] = (
                f"it, its schema or the publication was altered since {said(joined.at)}, or a privilege on it was "
                "given or taken"
            )
        elif starts[table.name] < Lsn.parse(joined.position):
            reasons[table.name] = (
                f"the standing slot tells of it since {joined.position} only ({joined.why}), and the copy is of "
                f"{starts[table.name]}"
            )
    return reasons
