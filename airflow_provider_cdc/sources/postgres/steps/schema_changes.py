"""Finds out whether copies can be rolled forward over schema changes, and how (`catalog.column_evolution`).

The log has no DDL. These facts replace it:

- The frame of the table (`standing_record.frames_of`) has not changed since the copy: its file, its key, and its place
  in the publication. So no statement rewrote or truncated the table.
- The catalog has the present columns. The table has had them at all times since the run's position, because the
  standing record has their versions, or because the log has the commits of their last changes.
- The catalog has a row for each dropped column. The log has the commit of the transaction that wrote this row.
- Each label of an enum has had its present name since the copy. The composite types of new columns have had their
  present fields since the copy.

Last, the log since the copy is read as the run will read it, so that the plan names everything that would stop the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, TerminalError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import read_catalog
from airflow_provider_cdc.sources.postgres.catalog.column_evolution import Drop, NotCarried, evolution, number_of
from airflow_provider_cdc.sources.postgres.catalog.schema import RENAMED, REWRITTEN, leaves
from airflow_provider_cdc.sources.postgres.catalog.type_catalog import with_young_fields
from airflow_provider_cdc.sources.postgres.checks.past import Past
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, reading_session, value
from airflow_provider_cdc.sources.postgres.slots.catalog_versions import Asked, already_so
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Joined, frames_of, states_of

# The text of an array with one value is the text of the value, in quotes if necessary.
_MISSING = """
SELECT a.attnum, a.attmissingval::text FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
"""
# A transaction that is older than the slot's catalog_xmin ended before the position of the slot.
_DROPPED = """
SELECT a.attnum, a.xmin::text, EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = %(slot)s
    AND s.confirmed_flush_lsn <= %(start)s::pg_lsn AND age(a.xmin) > age(s.catalog_xmin))
    OR COALESCE(age(a.xmin) > age((NULLIF(%(mark)s, '')::numeric %% 4294967296)::text::xid), false)
FROM pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0 AND a.attisdropped
"""


@dataclass(frozen=True)
class SinceCopy:
    """A session, and the standing slot with the log since the copies at ``start``.

    ``to``: the position to which the copies are rolled forward. None: a position that is fixed later. ``mark``: a mark
    of `run_publication.now` from before the creation of the slot at ``start``. Empty: unknown. Such a slot may be
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
            drops = dropped_columns(since, base, table)
            check_fields(since, base, table)
            found = evolution(base, table, missing_values(since.connection, table), drops, f"since {since.start}")
        except (NotCarried, ConfigurationError) as error:
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
    """Return the tables whose frame or labels have changed since the copy, or whose columns may have changed since the
    run's position, with the reasons."""
    now = [table for _, table in tables]
    name = since.standing.name
    frames, states = read_catalog(
        since.connection, lambda catalog: (frames_of(catalog, name, now), states_of(catalog, name, now))
    )
    # Every transaction that commits later than this position and began before it is still in progress. The check is
    # repeated when the position is fixed.
    here = str(value(since.connection, "pg_current_wal_flush_lsn()"))
    refused: dict[TableName, str] = {}
    asked: list[Asked] = []
    for base, table in tables:
        joined = since.standing.record.tables[str(table.name)]
        if why := _another_frame(base, table, joined, frames[str(table.name)], since.start):
            refused[table.name] = why
            continue
        known = joined.state == states[str(table.name)]
        settled = since.to is None or (known and Lsn.parse(joined.position) <= since.to)
        framed = replace(
            joined,
            position=joined.position if known else here,
            shape=joined.frame,
            shape_position=joined.frame_position,
        )
        position = since.start if settled or since.to is None else since.to
        asked.append(Asked(table, framed, position, labels_at=since.start, only_labels=settled))
    so = already_so(since.settings, since.connection, since.standing.name, since.standing.confirmed, asked)
    return refused | {
        question.table.name: "a label of its enums was added or renamed since the copy, or it is unknown whether its "
        "columns were changed after the position of this run"
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
        return "its key, its replica identity, its schema, its child tables or the publication may have changed, too"
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


def dropped_columns(since: SinceCopy, base: Table, now: Table) -> dict[int, Drop]:
    """Return the columns of the base that were dropped, by number, with their transactions.

    :raises NotCarried: a column was added and dropped again.
    """
    numbers = {number_of(column) for column in base.columns}
    last = max(numbers, default=0)
    slot = {"slot": since.standing.name, "start": str(since.start), "mark": since.mark}
    rows = query(since.connection, _DROPPED, {**slot, "table": now.details["oid"]})
    dropped = {number: xid for number, xid, _ in rows if number in numbers}
    # Before the copy, or after it.
    later = {number: xid for number, xid, is_old in rows if number > last and not is_old}
    if not dropped and not later:
        return {}
    begin = since.standing.confirmed if later else max(since.start, since.standing.confirmed)
    ends = _commits(since, begin, {*dropped.values(), *later.values()})
    if any(ends.get(xid, since.start) > since.start or xid not in ends for xid in later.values()):
        raise NotCarried("a column was added and dropped again")
    return {number: Drop(xid, str(ends.get(xid, ""))) for number, xid in dropped.items()}


def _commits(since: SinceCopy, begin: Lsn, wanted: Collection[str]) -> dict[str, Lsn]:
    """Return the ends of the commits of transactions. Those of subtransactions are not in the log."""
    ends: dict[str, Lsn] = {}
    try:
        with closing(commits_since(since.settings, since.standing.name, begin)) as commits:
            for commit in commits:
                if commit.xid in wanted:
                    ends[commit.xid] = commit.end
                    if len(ends) == len(wanted):
                        break
    except ConfigurationError:
        # The server lacks test_decoding.
        return {}
    return ends


def survey(since: SinceCopy, tables: Sequence[Table]) -> dict[TableName, str]:
    """Read the log since the copies. Return the tables for which a run would stop, with the reasons."""
    if not tables:
        return {}
    try:
        _read(since, tables)
    except TerminalError as error:
        if len(tables) == 1:
            return {tables[0].name: said(error)}
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
    from airflow_provider_cdc.sources.postgres.decode.new_columns import new_columns

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


def said(error: CdcError) -> str:
    """Return an error in the words of a reason why a table is not carried."""
    return f"{error.message} ({error.where})" if error.where else error.message
