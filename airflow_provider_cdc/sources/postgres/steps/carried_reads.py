"""Carries a finished read of a table over schema changes, so that the run need not read the table again.

The rules are those of copies that are rolled forward (`steps.schema_changes`). But the facts about the table come from
the run itself, not from the record of a standing slot:

- The run recorded the table at the position at which the read began, and again at the position to which the run moves.
- After the read had ended, the catalog rows of the table still had the recorded versions. Each change of the table
  writes new versions, and no session can undo them. A change holds an ACCESS EXCLUSIVE lock until its transaction is
  visible. So a read that ended before this look saw the table as it was recorded.
- The log since the read is that of the run's own slot and publication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn, Position
from airflow_provider_cdc.core.tables.table import Column, Evolution, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import read_catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import present_tables
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import (
    AT_UPPER,
    DROPPED,
    NotCarried,
    difference,
    evolution,
    number_of,
)
from airflow_provider_cdc.sources.postgres.catalog.types import label_oids
from airflow_provider_cdc.sources.postgres.checks.past import Past
from airflow_provider_cdc.sources.postgres.checks.privileges import Privileges
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import Connection, session, value
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.commits import NoFreeSlot
from airflow_provider_cdc.sources.postgres.slots.standing_record import Standing
from airflow_provider_cdc.sources.postgres.steps import schema_changes
from airflow_provider_cdc.sources.postgres.steps.check_identity import check_identity, check_published

if TYPE_CHECKING:
    import pyarrow as pa

_UNALTERED = "unaltered at "
_YOUNG_LABELS = """EXISTS (SELECT FROM pg_enum e WHERE e.oid = ANY(%s::oid[])
    AND age(e.xmin) <= age((%s::numeric %% 4294967296)::text::xid))"""


class CarriesReads:
    """The methods of `Source` for reads that are carried over schema changes."""

    settings: ConnectionSettings

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        # The other tables are never carried.
        tables = [table for table in tables if not (table.details.get(AT_UPPER) or table.needs_one_position)]
        if not tables:
            return {}
        with session(self.settings) as connection:
            unaltered = _unaltered(connection, tables)
            end = LogEnd(f"{_UNALTERED}{value(connection, 'pg_current_wal_insert_lsn()::text')}")
        return dict.fromkeys((table.name for table in unaltered), end)

    def carry_read(
        self,
        identity: Facts,
        start: Position,
        table: Table,
        now: Table,
        ended: LogEnd,
        end: Position,
        recorded: LogEnd | None = None,
    ) -> Evolution:
        begin, facts = Lsn.expect(start), PostgresFacts.of(identity)
        try:
            mark = _check_read(facts, table, now, ended)
            settings = session_setup.of_run(self.settings, facts, begin)
            if settings.log_server is not None:
                raise NotCarried("the log is read from a standby")
            with session(settings) as connection:
                check_identity(connection, facts, begin, connection)
                check_published(connection, facts, [table])
                _check_may_read(connection, now)
                slot = slots.state(connection, facts.slot)
                confirmed = slot.confirmed if slot is not None else None
                past = Past(facts.slot, Standing("", {}), (), confirmed or begin)
                since = schema_changes.SinceCopy(settings, connection, past, begin, Lsn.expect(end), mark)
                return _evolution(since, table, now, recorded)
        except NotCarried as error:
            raise SchemaChanged(str(error), where=str(table.name)) from error
        except (ConfigurationError, NoFreeSlot) as error:
            # To read the table again, the run needs no more slots than it has.
            raise SchemaChanged(schema_changes.reason_text(error), where=str(table.name)) from error

    def carry_images(self, table: Table, columns: Sequence[Column], images: pa.BinaryArray) -> pa.BinaryArray:
        # Import this module late, because its kernel takes a second to load.
        from airflow_provider_cdc.sources.postgres.decode.images import carry_images

        return carry_images(table, columns, images)


def _unaltered(connection: Connection, tables: Sequence[Table]) -> list[Table]:
    """Return the tables that have their recorded state."""
    try:
        present = present_tables(connection, [table.name for table in tables])
    except SchemaChanged:
        # One of the tables is gone.
        return [table for one in tables for table in _unaltered(connection, [one])] if len(tables) > 1 else []
    pairs = zip(tables, present, strict=True)
    return [table for table, now in pairs if not difference(table, now, versions=True)]


def _check_read(facts: PostgresFacts, table: Table, now: Table, ended: LogEnd) -> str:
    """Check that the read can be brought forward by row images, and that no schema change came before its end. Return
    the mark after which no session may alter the run's own publication."""
    if facts.since is None:
        raise NotCarried("the run does not use a publication of its own")
    if table.details.get(AT_UPPER):
        raise NotCarried("the log has only the keys of its changed rows")
    if table.needs_one_position:
        raise NotCarried("it has no key, so it was read in a snapshot of its own")
    if now.details["kind"] != "r":
        raise NotCarried("schema changes of partitioned tables are not carried")
    if not ended.startswith(_UNALTERED):
        raise NotCarried("it may have been altered before the end of its read")
    # Everything but the columns, which `evolution` compares.
    if why := difference(replace(table, columns=now.columns), now, versions=True):
        raise NotCarried(why)
    return facts.since


def _check_may_read(connection: Connection, now: Table) -> None:
    """Check that this user may read all present columns. The values of new columns come from the catalog and the log,
    so no SELECT of them would be denied."""
    privileges = Privileges(connection)
    for problem in read_catalog(
        connection, lambda catalog: privileges.table_problems(catalog, [now], publishing=False)
    ):
        raise NotCarried(problem.what)


def _evolution(since: schema_changes.SinceCopy, table: Table, now: Table, recorded: LogEnd | None) -> Evolution:
    schema_changes.check_drops(since, table, now)
    schema_changes.check_fields(since, table, now)
    _check_labels(since, table, now)
    missing = schema_changes.missing_values(since.connection, now)
    found = evolution(table, now, missing, f"since {since.start}")
    # The missing values belong to the file of the table, so they count only if the table still has this file.
    (again,) = present_tables(since.connection, [table.name])
    if why := difference(now, again, versions=True):
        raise NotCarried(f"it was altered again meanwhile: {why}")
    carried = replace(now, eras=found.eras, options=table.options, selection=table.selection)
    if recorded is not None:
        _check_pieces(found)
        # The rest of the log is read when the run moves (`jobs.restart.altered`).
        schema_changes.check_new_columns([carried])
        return found
    if broken := schema_changes.survey(since, [carried]):
        raise NotCarried(broken[table.name])
    return found


def _check_labels(since: schema_changes.SinceCopy, table: Table, now: Table) -> None:
    """Check that the labels of new columns have had their present names at all times. The log has the names that the
    labels had when the rows were written. `evolution` compares the labels of the other columns."""
    numbers = {number_of(column) for column in table.columns}
    new = [column for column in now.columns if number_of(column) not in numbers]
    if new and value(since.connection, _YOUNG_LABELS, (label_oids(new), since.mark)):
        raise NotCarried("a label of the enum of a new column was added or renamed since the read began")


def _check_pieces(found: Evolution) -> None:
    """Check that the images in the recorded pieces have the columns with which the pieces were read.

    The pieces were read with the columns of the table as it was read. Names and types in the log were those of these
    columns. But if a column was dropped and added again, the log has the same names and types after that. When a column
    was dropped is not known.
    """
    if dropped := [column.name for era in found.eras for column in era.columns if DROPPED in column.details]:
        raise NotCarried(f"{', '.join(dropped)} may have been dropped before the end of the recorded pieces of the log")
