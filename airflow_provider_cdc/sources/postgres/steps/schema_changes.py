"""Finds the tables that were altered since their copies, and whether the copies can be rolled forward over the schema
changes, and how (`catalog.schema_difference`).

The log has no DDL. These facts replace it:

- The frame of the table (`standing_record.frames_of`) has not changed since the copy: its file, its key, and its place
  in the publication. So no statement rewrote or truncated the table.
- The catalog has the present columns. The table has had them at all times since the run's position, because the
  standing record has their versions, or because their last changes ended before this position (`catalog_versions`).
- The catalog has a row for each dropped column.
- Each label of an enum has had its present name since the copy, because it belongs to the frame. The composite types of
  new columns have had their present fields since the copy.

Last, the log since the copy is read as the run will read it, so that the plan names everything that would stop the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, TerminalError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import followed, identity_problem
from airflow_provider_cdc.sources.postgres.catalog.schema import RENAMED, REWRITTEN, leaves, read_tables, without_room
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import NotCarried, evolution, number_of
from airflow_provider_cdc.sources.postgres.catalog.types import with_young_fields
from airflow_provider_cdc.sources.postgres.checks.past import Past
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, reading_session, value
from airflow_provider_cdc.sources.postgres.slots.catalog_versions import Asked, all_ended, already_so
from airflow_provider_cdc.sources.postgres.slots.standing_record import (
    KNOWN_DAYS,
    Joined,
    format_micros,
    frames_of,
    parents_among,
    states_of,
)

# The text of an array with one value is the text of the value, in quotes if necessary.
_MISSING = """
SELECT a.attnum, a.attmissingval::text FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
"""
_DROPPED = """
SELECT a.xmin::text FROM pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > %(last)s AND a.attisdropped
AND NOT COALESCE(age(a.xmin) > age((NULLIF(%(mark)s, '')::numeric %% 4294967296)::text::xid), false)
"""


@dataclass(frozen=True)
class SinceCopy:
    """A session, and the standing slot with the log since the copies at ``start``.

    ``to``: the position to which the copies are rolled forward. None: a position that is fixed later. ``mark``: a mark
    of `publications.now` from before the creation of the slot at ``start``. Empty: unknown. Such a slot may be
    advanced, but all transactions from before the mark ended before ``start``.
    """

    settings: ConnectionSettings
    connection: Connection
    standing: Past
    start: Lsn
    to: Lsn | None
    mark: str = ""


def carry(
    since: SinceCopy, tables: Sequence[tuple[Table, Table]], evolutions: dict[TableName, Evolution]
) -> dict[TableName, str]:
    """Add the evolutions of tables that were altered since their copy. Return the reasons for the other tables.

    :param tables: each table as its copy has it, and the present table.
    """
    refused = _unfit(since, tables)
    carried = []
    for base, table in tables:
        if table.name in refused:
            continue
        try:
            check_drops(since, base, table)
            check_fields(since, base, table)
            found = evolution(base, table, missing_values(since.connection, table), f"since {since.start}")
        except NotCarried as error:
            refused[table.name] = str(error)
            continue
        evolutions[table.name] = found
        carried.append(replace(table, eras=found.eras, options=base.options))
    broken = survey(since, carried)
    for name in broken:
        del evolutions[name]
    return {name: f"since the copy, it was altered: {why}" for name, why in (refused | broken).items()}


def still_carried(
    since: SinceCopy, now: Sequence[Table], evolutions: Mapping[TableName, Evolution]
) -> dict[TableName, str]:
    """Return the reasons why the evolutions that `carry` found do not lead to the run's position, which is fixed."""
    assert since.to is not None
    states = read_catalog(since.connection, lambda catalog: states_of(catalog, since.standing.name, now))
    refused = _unfit(since, [(table, table) for table in now])
    for table in now:
        joined = since.standing.record.tables[str(table.name)]
        if joined.state != states[str(table.name)] or table.columns != evolutions[table.name].columns:
            refused[table.name] = "it was altered after the task `preflight` ran"
    return refused


def _unfit(since: SinceCopy, tables: Sequence[tuple[Table, Table]]) -> dict[TableName, str]:
    """Return the tables whose frame has changed since the copy, or whose columns may have changed since the run's
    position, with the reasons."""
    now = [table for _, table in tables]
    name = since.standing.name
    frames, states = read_catalog(
        since.connection, lambda catalog: (frames_of(catalog, name, now), states_of(catalog, name, now))
    )
    refused: dict[TableName, str] = {}
    asked: list[Asked] = []
    for base, table in tables:
        joined = since.standing.record.tables[str(table.name)]
        if why := _another_frame(base, table, joined, frames[str(table.name)], since.start):
            refused[table.name] = why
            continue
        known = joined.state == states[str(table.name)]
        if since.to is None or (known and Lsn.parse(joined.position) <= since.to):
            continue
        framed = replace(joined, shape=joined.frame, shape_position=joined.frame_position)
        asked.append(Asked(table, framed, since.to))
    so = already_so(since.settings, since.connection, since.standing.name, asked)
    return refused | {
        question.table.name: "it is unknown whether its columns were changed after the position of this run"
        for question in asked
        if question.table.name not in so
    }


def _another_frame(base: Table, now: Table, joined: Joined, frame: str, start: Lsn) -> str:
    if now.details["kind"] != "r":
        return "schema changes of partitioned tables are not carried"
    if base.details["oid"] != now.details["oid"]:
        return RENAMED
    if [leaf.filenode for leaf in leaves(base)] != [leaf.filenode for leaf in leaves(now)]:
        return f"it {REWRITTEN}"
    if (base.key, base.details["key_version"]) != (now.key, now.details["key_version"]):
        return "its key has changed"
    if joined.frame != frame or not joined.frame_position or start < Lsn.parse(joined.frame_position):
        return (
            "its key, its replica identity, its schema, its child tables, a label of its enums or the publication may "
            "have changed, too"
        )
    return ""


def missing_values(connection: Connection, table: Table) -> dict[int, str]:
    """Return the values of columns in rows that were stored before the columns were added, as texts."""
    return {number: _element(text) for number, text in query(connection, _MISSING, (table.details["oid"],))}


def _element(array: str) -> str:
    """Return the text of the only value of an array, which is not NULL."""
    text = array[1:-1]
    if not text.startswith('"'):
        return text
    out, escaped = [], False
    for character in text[1:-1]:
        if character == "\\" and not escaped:
            escaped = True
            continue
        out.append(character)
        escaped = False
    return "".join(out)


def check_fields(since: SinceCopy, base: Table, now: Table) -> None:
    """Check that the new columns have had the present fields of their composite types at all times.

    A new field is part of the text of all stored values, but not of the text in the log since the column was added. The
    definitions of the other columns at the copy are known. `still_carried` compares the definitions again.
    """
    numbers = {number_of(column) for column in base.columns}
    new = {column.name: int(column.details["oid"]) for column in now.columns if number_of(column) not in numbers}
    if new and (young := _with_young_fields(since, new.values())):
        names = ", ".join(name for name, oid in new.items() if oid in young)
        raise NotCarried(f"the fields of the composite type of {names} may have been changed since the copy")


def _with_young_fields(since: SinceCopy, types: Collection[int]) -> set[int]:
    name, start = since.standing.name, since.start
    return read_catalog(since.connection, lambda catalog: with_young_fields(catalog, types, name, start))


def check_drops(since: SinceCopy, base: Table, now: Table) -> None:
    """Check that no column was added and dropped again since the copy, because the log may have its values.

    :raises NotCarried: a column was, or it is unknown.
    """
    last = max((number_of(column) for column in base.columns), default=0)
    rows = query(since.connection, _DROPPED, {"table": now.details["oid"], "last": last, "mark": since.mark})
    dropped = {now.name: {xid for (xid,) in rows}}
    if rows and not all_ended(since.settings, since.connection, since.standing.name, since.start, dropped):
        raise NotCarried("a column was added and dropped again")


def survey(since: SinceCopy, tables: Sequence[Table]) -> dict[TableName, str]:
    """Read the log since the copies. Return the tables for which a run would stop, with the reasons."""
    if not tables:
        return {}
    try:
        _read(since, tables)
    except TerminalError as error:
        if len(tables) == 1:
            return {tables[0].name: reason_text(error)}
        reasons: dict[TableName, str] = {}
        for table in tables:
            reasons |= survey(since, [table])
        return reasons
    return {}


def check_new_columns(tables: Sequence[Table]) -> None:
    """Check that the lake has values like those of new columns in earlier rows.

    :raises ValueNotRepresentable: it has not.
    """
    # This module is imported only here, because its kernels take a second to load.
    from airflow_provider_cdc.sources.postgres.decode.images import new_columns

    for table in tables:
        for era in table.eras:
            new_columns(table, era)


def _read(since: SinceCopy, tables: Sequence[Table]) -> None:
    # These modules are imported only here, because their kernels take a second to load.
    from airflow_provider_cdc.sources.postgres.decode.images import decode_images
    from airflow_provider_cdc.sources.postgres.log.segments import PostgresSegmentReader, segment_of

    check_new_columns(tables)
    name, start = since.standing.name, since.start
    stop = since.to or Lsn.parse(value(since.connection, "pg_current_wal_flush_lsn()::text"))
    tracked = [TrackedTable(index, table, stop, forward=True) for index, table in enumerate(tables)]
    with reading_session(since.settings) as reading:
        for batch in PostgresSegmentReader(reading, segment_of(name, name, start, stop), start, tracked):
            table = tables[batch["table"][0].as_py()]
            for images in (batch["before"], batch["after"]):
                # Whether the lake can hold a value is known only when it is known which rows are published.
                decode_images(table, images.drop_null(), odd=[])


def reason_text(error: CdcError) -> str:
    """Return an error in the words of a reason why a table is not carried."""
    return f"{error.message} ({error.where})" if error.where else error.message


def altered_tables(
    settings: ConnectionSettings,
    connection: Connection,
    standing: Past,
    starts: Mapping[TableName, Lsn],
    made_by: Mapping[TableName, str],
    bounded: bool,
    keys_only: bool,
) -> tuple[tuple[Table, ...], dict[TableName, str], set[TableName]]:
    """Return the present tables, in the order of ``starts``, and the reasons why copies of them cannot be rolled
    forward from ``starts``, by the standing slot's record. Also return the tables whose only reason is that they were
    altered.

    :param made_by: prefixes of the slot names of the runs that made the copies.
    :param bounded: whether the position to which the copies are rolled forward is in the past.
    :param keys_only: whether only the keys of changed rows are needed from the log.
    """

    def present(catalog: Catalog) -> tuple[tuple[Table, ...], dict[TableName, bool], dict[str, str], set[str]]:
        tables = read_tables(catalog, list(starts))
        has_keys = followed(catalog, tables, standing.name) if keys_only else [True] * len(tables)
        follows_keys = dict(zip(starts, has_keys, strict=True))
        # The partitions of a tree are known at two points: at the position of the copy, and now. At a position in
        # between, the partitions are unknown, unless the tree has no room for more partitions.
        parents: set[str] = set()
        if bounded:
            parents = {str(table.name) for table in tables if table.details["kind"] == "p"}
            parents |= parents_among(catalog, tables)
            parents -= without_room(catalog, tables)
        return tables, follows_keys, states_of(catalog, standing.name, tables), parents

    tables, follows_keys, states, parents = read_catalog(connection, present)
    reasons: dict[TableName, str] = {}
    joined_later, altered = [], set()
    for table in tables:
        name = str(table.name)
        joined = standing.record.tables.get(name)
        if not follows_keys[table.name]:
            reasons[table.name] = "the log does not have the keys of its changed rows"
        elif not keys_only and (problem := identity_problem(table)) is not None:
            reasons[table.name] = problem.what
        elif name in parents:
            reasons[table.name] = "it has partitions or child tables, and which ones at a past position is unknown"
        elif joined is None:
            reasons[table.name] = f"the standing slot {standing.name} does not cover it yet, only from this run on"
        elif not standing.record.has_copy(name, starts[table.name], made_by[table.name]):
            # A session records a copy only after it has found the run's own slot on the server. So a recorded copy's
            # position is in the server's present history.
            reasons[table.name] = (
                f"the standing slot {standing.name} has no record of the copy at {starts[table.name]}: the server's "
                f"disk was restored to an earlier state, or the copy is older than {KNOWN_DAYS} days, or the run of "
                "the copy did not use this standing slot, or this run could not record the copy (its task "
                "`consolidate` then logged a warning)"
            )
        elif joined.state != states[name]:
            altered.add(table.name)
            reasons[table.name] = (
                f"it, its schema or the publication was altered since {format_micros(joined.at)}, or a privilege "
                "on it was granted or revoked"
            )
        elif starts[table.name] < Lsn.parse(joined.position):
            joined_later.append(Asked(table, joined, starts[table.name]))
    unchanged = already_so(settings, connection, standing.name, joined_later)
    for question in joined_later:
        if question.table.name not in unchanged:
            altered.add(question.table.name)
            reasons[question.table.name] = (
                f"the standing slot covers the table only since {question.joined.position} ({question.joined.why}), "
                f"but the copy is at {question.position}"
            )
    return tables, reasons, altered
