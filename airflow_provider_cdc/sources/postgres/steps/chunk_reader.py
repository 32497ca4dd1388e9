"""Reads chunks of a table, and looks up rows by their keys. Each read checks that the table is unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import (
    ConfigurationError,
    DecodeError,
    Problem,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings, KeyReader, ReplicaRead
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.postgres.catalog import users_code
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.named_tables import relation_problems
from airflow_provider_cdc.sources.postgres.catalog.safe_views import check_view_read
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, RENAMED, REWRITTEN, Leaf, columns_of, leaves
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.privileges import Privileges
from airflow_provider_cdc.sources.postgres.chunking.chunks import place
from airflow_provider_cdc.sources.postgres.chunking.key_ranges import ONE_BY_ONE, KeyLookup, pushed_condition
from airflow_provider_cdc.sources.postgres.server.session import (
    SharedView,
    is_denied,
    literal,
    mapped_errors,
    query,
    quote,
    session,
    shared_view_errors,
)
from airflow_provider_cdc.sources.postgres.slots import waits
from airflow_provider_cdc.sources.session import Kept

MANY_LEAVES = 3
"""If a table has at least this many partitions, a key lookup is faster if it first finds the partition of each key."""

_DATA_EXCEPTION = "22"
"""The SQLSTATE class of errors that are caused by values."""

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.postgres.decode.rows import RowReader


@contextmanager
def open_reader(
    settings: ConnectionSettings,
    table: Table,
    consistency: str,
    view: SharedView | None,
    kept: Kept | None = None,
) -> Iterator[KeyReader]:
    """Open a session that reads chunks of ``table``. The session ends with the block, unless it is ``kept``.

    :raises SourceUnavailable: with ``exported``, the session that exported the shared snapshot has ended.
    """
    # Imported here because the steps that only plan and record do not need the compiled decoders.
    from airflow_provider_cdc.sources.postgres.decode.rows import open_rows

    # Every read checks the recorded definition of the whole table, even if it reads only some columns.
    with open_rows(settings, table.as_read, kept) as rows:
        if consistency in ("watermark", "again") and table.details["kind"] in (VIEW, MATERIALIZED):
            raise ConfigurationError("a view can only be read in a shared snapshot", where=str(table.name))
        if consistency in ("watermark", "again"):
            yield TableReader(settings, rows, table, None)
            return
        if view is None:
            raise SourceUnavailable(
                "the shared snapshot for reading the table does not exist", where=str(table.name), hint="retry the task"
            )
        rows.run("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        with shared_view_errors(str(table.name)):
            rows.run(f"SET TRANSACTION SNAPSHOT {literal(view.snapshot)}")
        rows.run("SAVEPOINT chunk")
        reader = TableReader(settings, rows, table, view.upper)
        yield reader
        reader.leave_view()


class TableReader:
    """Reads chunks of one table in one session, and checks that the table is unchanged."""

    lock_seconds = 0.0
    replica_read: ReplicaRead | None = None

    def __init__(self, settings: ConnectionSettings, rows: RowReader, table: Table, upper: Lsn | None) -> None:
        self.upper = upper
        self._in_view = upper is not None
        self._settings = settings
        self._rows = rows
        self._table = table
        self._lookup: KeyLookup | None = None
        self._path = ""
        self._doubtful: dict[int, bool] = {}

    @property
    def nulled(self) -> Mapping[str, int]:
        return self._rows.nulled

    @property
    def odd(self) -> Sequence[OddValue]:
        return self._rows.odd

    def leave_view(self) -> None:
        """If all chunks were read in one transaction, end this transaction."""
        if self._in_view:
            self._rows.run("COMMIT")
            self._in_view = False

    def wait_until_durable(self) -> str:
        where = f"{self._table.name}, the end of its read"
        with mapped_errors(where):
            self.leave_view()
            return waits.wait(self._rows.ask, where)[1]

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        leaf, condition = place(self._table, chunk)
        with self._mapped_errors(str(chunk)):
            if leaf is not None:
                conditional = self._condition or chunk.within is not None
                prepare = users_code.NO_INDEX if conditional and self._is_doubtful(leaf) else ""
                yield from self._read(leaf, f"ONLY {leaf.sql} WHERE {condition}", pushed=True, prepare=prepare)

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        with self._mapped_errors(f"rows of {format_count(len(keys), 'key')}"):
            if self._lookup is None:
                self._lookup = KeyLookup(self._rows.ask, self._table)
            table_leaves = leaves(self._table)
            keys_by_leaf = self._by_leaf(self._lookup, keys) if len(table_leaves) >= MANY_LEAVES else None
            for leaf in table_leaves:
                leaf_keys = keys if keys_by_leaf is None else keys_by_leaf.get(leaf.oid)
                if leaf_keys is not None:
                    yield from self._read(leaf, self._lookup.source(leaf.sql, leaf_keys), prepare=ONE_BY_ONE)

    def _by_leaf(self, lookup: KeyLookup, keys: pa.BinaryArray) -> dict[int, pa.BinaryArray] | None:
        """Call `KeyLookup.by_leaf`. If there is a shared snapshot, the lookup uses it.

        Without a shared snapshot, rows may be added or removed between the lookup and the read. The log has these
        changes, so the rows are read again.
        """
        self._begin(ONE_BY_ONE)
        try:
            keys_by_leaf = lookup.by_leaf(keys)
        except (psycopg.Error, adbc_driver_manager.Error) as error:
            if not users_code.is_unplannable(error):
                raise
            # To plan a SELECT on the root, the server uses the CHECK constraints of the partitions. If planning fails,
            # each partition can still be searched separately.
            self._undo()
            return None
        self._end()
        return keys_by_leaf

    def _begin(self, prepare: str) -> None:
        """Begin a read.

        :param prepare: a query to run first, in the same transaction. Empty: there is no such query.
        """
        if self.upper is None:
            self._rows.run("BEGIN READ ONLY ISOLATION LEVEL READ COMMITTED")
        if self._path:
            self._rows.ask(f"SELECT pg_catalog.set_config('search_path', {literal(self._path)}, true)")
            # A lookup by key (``prepare`` is not empty) needs an index. The rows that the lookup returns are compared
            # with the log.
            prepare = prepare or users_code.NO_INDEX
        if prepare:
            self._rows.ask(prepare)

    def _end(self) -> None:
        # Both statements release the lock on the relation. The next check relies on the release, because it uses the
        # transaction's locks to find out which relation was read.
        self._rows.run("ROLLBACK TO SAVEPOINT chunk" if self.upper is not None else "COMMIT")

    def _undo(self) -> None:
        """Make the session usable again after an error."""
        self._rows.run("ROLLBACK TO SAVEPOINT chunk" if self.upper is not None else "ROLLBACK")

    def _batches(self, source: str, pushed: bool, prepare: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a read. If the server cannot plan the read, use the user's default search_path for this
        read and all later reads.

        :param pushed: whether the server evaluates the part of the table's condition that can be pushed down.
        """
        self._begin(prepare)
        batches = self._rows.read(source + (self._condition if pushed else ""))
        try:
            first = next(batches, None)
        except (psycopg.Error, adbc_driver_manager.Error) as error:
            path_is_safe = self._path or not users_code.may_be_read_under_own_path(self._table)
            if path_is_safe or not users_code.is_unplannable(error):
                raise
            self._undo()
            with session(self._settings) as other:
                self._path = users_code.planned_under(other)
            self._begin(prepare)
            batches = self._rows.read(source + (self._condition if pushed else ""))
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches
        if self._path:
            self._rows.ask(users_code.PINNED)

    def _is_doubtful(self, leaf: Leaf) -> bool:
        """Return whether indexes of a leaf call user functions.

        The server resolves the names in the bodies of these functions when it plans a SELECT. Under another
        search_path, a function may have another result, so an index may lack rows that the planner expects in it.
        """
        if leaf.oid not in self._doubtful:
            self._doubtful[leaf.oid] = self._rows.ask(users_code.INDEXES_BY_USERS.format(leaf.oid)) != [("0",)]
        return self._doubtful[leaf.oid]

    @property
    def _condition(self) -> str:
        """Return the pushed-down condition as the end of a WHERE clause. The server evaluates it to return fewer rows.

        Under the user's default search_path, the operators are schema-qualified, so that no user-defined operator is
        used.
        """
        pushed = pushed_condition(self._table, qualified=bool(self._path))
        return f" AND ({pushed})" if pushed else ""

    @contextmanager
    def _mapped_errors(self, what: str) -> Iterator[None]:
        """Map errors as `mapped_errors` does, with two additions.

        If a privilege was revoked during the run, the error names the privilege. If the server cannot compute a value,
        the error does not include the server's message, because the message may quote a value of a withheld column.
        """
        where = f"{self._table.name}, {what}"
        try:
            with mapped_errors(where):
                try:
                    yield
                except (psycopg.Error, adbc_driver_manager.Error) as error:
                    if not (error.sqlstate or "").startswith(_DATA_EXCEPTION):
                        raise
                    raise TerminalError(
                        f"the server cannot compute a virtual column or a view for one of the rows (SQLSTATE "
                        f"{error.sqlstate})",
                        where=where,
                        hint="a SELECT of all rows shows the server's message, which is not shown here because it may "
                        "quote values; correct the row, or leave the column or the table out",
                    ) from None
        except ConfigurationError as error:
            if not is_denied(getattr(error.__cause__, "sqlstate", None) or ""):
                raise
            with session(self._settings) as other:
                problems = read_catalog(other, self._problems)
            if not problems:
                raise
            what, hint = ("; ".join(getattr(problem, part) for problem in problems) for part in ("what", "hint"))
            raise ConfigurationError(
                f"{what}, since the run began", where=where, hint=f"{hint}, then clear the task"
            ) from error

    def _problems(self, catalog: Catalog) -> list[Problem]:
        missing = Privileges(catalog).table_problems(catalog, [self._table], publishing=False)
        return [*missing, *relation_problems(catalog, self._table)]

    def _read(self, leaf: Leaf, source: str, *, pushed: bool = False, prepare: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the rows of one leaf, and check that the leaf is unchanged.

        :param pushed: as in `_batches`.
        :param prepare: a query to run before the read, in the same transaction. Empty: there is no such query.
        """
        try:
            yield from self._batches(source, pushed, prepare)
        except DecodeError:
            # Most likely, the column types have changed. In that case, the check raises an error that names the change.
            # This session has not finished reading its result, so another session runs the check.
            with session(self._settings) as other:
                check_in_place(partial(query, other), self._table, leaf, locked=False)
            raise
        # The transaction still holds its lock, so the name still refers to the relation that was read.
        check_in_place(self._rows.ask, self._table, leaf)
        if self._table.details["kind"] in (VIEW, MATERIALIZED):
            check_view_read(self._rows.ask, self._table, leaf)
        self._end()


def check_in_place(
    ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf, locked: bool = True
) -> None:
    """Check, while the relation is locked, that the leaf's name still refers to the recorded relation in its original
    file, and that its columns have the same names and types.

    :param ask: returns the rows of a query whose columns are all text.
    :param locked: whether the session has just read the leaf, and has read nothing else in the same transaction.
    :raises SchemaChanged: the relation, its file or its columns are different.
    """
    relation = f"to_regclass({literal(leaf.sql)})"
    # A query of the catalog uses the session's snapshot. This snapshot may be older than the table definition that a
    # SELECT uses. The expression r.* uses the same table definition as a SELECT.
    types = ", ".join(f"pg_typeof(r.{quote(column.name)})::oid" for column in table.columns)
    # The name of a schema cannot be locked. So during the read, the qualified name may have referred to another
    # relation. To find out which relation was read, check which relation the transaction has locked. Use r.* instead of
    # r, because the table may have a column with the name r.
    read = f"SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = {leaf.oid}"
    ((oid, filenode, names, found, was_read),) = ask(
        f"SELECT {relation}::oid::text, pg_relation_filenode({relation})::text, row_to_json(r.*)::text, "
        f"array_to_string(ARRAY[{types}], ' '), EXISTS ({read})::text FROM (SELECT (NULL::{leaf.sql}).*) r"
    )
    what = ""
    # A view has no file, and a materialized view may have a new file (`views.safe_views`).
    same_file = table.details["kind"] in (VIEW, MATERIALIZED) or filenode == str(leaf.filenode)
    if oid != str(leaf.oid) or not same_file:
        what = REWRITTEN if oid == str(leaf.oid) else RENAMED
    elif locked and was_read != "true":
        what = "another table had its name for a while"
    elif list(json.loads(str(names))) != [column.name for column in columns_of(table, leaf)]:
        what = "its columns had other names for a while"
    elif found != " ".join(str(column.details["oid"]) for column in table.columns):
        what = "its columns had other types for a while"
    if what:
        raise SchemaChanged(what, where=f"{table.name}, {leaf.sql}", hint=HINT)
