"""Chunks of a table. They are planned with estimates from the index, confirmed by the server, and read as key ranges.

Planning never scans the table. For EXPLAIN of a key range, the server looks up both ends of the range in the index and
estimates the rows in between. This takes a fraction of a millisecond, regardless of the number of rows. So the key
space is first cut into *cells*, which are key ranges of about the wanted size. A cell with too many rows is cut again,
between the first and the last key that exist in the cell. This skips gaps between keys. If all rows of a cell have the
same value in a key column, the cell is cut along the next key column. Small neighbouring cells are joined.

The cuts only affect how even the chunks are. The chunks have no gaps and do not overlap, because their bounds strictly
increase in the key's order (``core.tables.chunk``). At the end, the server confirms the order of the bounds
(``bounds``), and unconfirmed bounds are dropped.

If a condition selects only a range of the key, only that range is cut. The first and the last chunk also cover the keys
outside the range, but the server does not send rows with these keys (``pushed_conditions``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pymysql

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Bound, Chunk, KeyValue, partition
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import Edge, ValueRange
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.chunking.axes import Axis, Between, DateAxis, TextAxis, TextCuts, axis_of
from airflow_provider_cdc.sources.mysql.chunking.pushed_conditions import pushed_span
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.server.driver import INTERRUPTED, is_of_table
from airflow_provider_cdc.sources.mysql.server.server import naming_blockers
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    batches,
    fits,
    query,
    quote,
    session,
    size_of,
    table_sql,
)
from airflow_provider_cdc.sources.mysql.tables.charsets import has_gaps
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables, unsigned_difference
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, arrow_schema, column_types
from airflow_provider_cdc.sources.planning.survey import gave_up, problems_of

# Selects the bounds of chunks. The server must confirm that the bounds increase, with the same comparisons that chunk
# reads use.
#
# The query for this confirmation uses the same expressions, parameters and protocol as the reads, because the server
# may interpret the same text differently in different places. For example, in a prepared statement, ``CAST('08:12:27'
# AS TIME)`` of a parameter is the time of a date, 00:00:00. So the query also returns each bound, and the result must
# be equal to the bound. A bound is dropped if the server reads it as another value, or cannot read it as a value of the
# column's type.


_BATCH = 64
"""Maximum number of bounds per statement."""


def increasing(connection: Connection, axes: Sequence[Axis], bounds: Sequence[Bound]) -> list[int]:
    """Return the indexes of the bounds to keep. A bound is kept only if the server interprets it as the intended value,
    and finds it greater than the previous kept bound."""
    increasing_indexes = list(range(len(bounds)))
    while True:
        greater: list[bool] = []
        pairs = list(pairwise([(), *(bounds[index] for index in increasing_indexes)]))
        checks = [_greater(axes, *pair) for pair in pairs]
        for some in batches(connection, checks, _size, _BATCH):
            greater += _answers(connection, some)
        if all(greater):
            return increasing_indexes
        # Keep a bound that follows a dropped bound, because it still has to be compared with the last kept bound.
        increasing_indexes = [
            index
            for index, is_greater, last_was in zip(increasing_indexes, greater, [True, *greater[:-1]], strict=True)
            if is_greater or not last_was
        ]


_Check = tuple[str, list[KeyValue]]


def _greater(axes: Sequence[Axis], before: Bound, bound: Bound) -> _Check:
    """Return SQL that is true if ``bound`` is greater than ``before`` and the server returns its values unchanged.

    If one bound is a prefix of the other bound, the longer bound is greater.
    """
    checks = ["TRUE"]
    params: list[KeyValue] = []
    for axis, value in zip(axes, bound, strict=False):
        # Compare as bytes: values that are equal in the collation may still be different bounds.
        back = axis.read.format(axis.bound.format("?"))
        checks.append(f"CAST({back} AS BINARY) = CAST(? AS BINARY)")
        params += [value, value]
    order = "TRUE" if len(before) < len(bound) else "FALSE"
    values: list[KeyValue] = []
    for axis, low, high in reversed(list(zip(axes, before, bound, strict=False))):
        parameter = axis.bound.format("?")
        order = f"({parameter} < {parameter} OR ({parameter} = {parameter} AND {order}))"
        values = [low, high, low, high, *values]
    return f"({' AND '.join([*checks, order])})", params + values


def _size(check: _Check) -> int:
    sql, values = check
    return len(sql.encode()) + size_of(values)


def _answers(connection: Connection, checks: Sequence[_Check]) -> list[bool]:
    # Let the query return one string, so that the form of the result does not depend on the number of checks.
    sql = ", ".join(f"IF({check}, 'Y', 'N')" for check, _ in checks)
    statement = PreparedStatement(connection, f"SELECT CAST(CONCAT({sql}) AS BINARY)")
    try:
        answers = statement.value([value for _, values in checks for value in values])
    finally:
        statement.close()
    return [answer == ord("Y") for answer in answers]


# Divides a keyless table into ranges of a column's values, so that each range can be read at a position of its own
# (docs/design/resume.md).
#
# InnoDB stores a table without a key in the order in which its rows were inserted. A column is used only if its values
# come in this order, too, and if it has an index: an AUTO_INCREMENT column, or a column with the time of the INSERT.
# With another column, the server would look up each row at another place on the disk.


_COLUMNS = """
SELECT s.COLUMN_NAME, s.INDEX_NAME FROM information_schema.STATISTICS s
JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)
JOIN information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME)
WHERE (s.TABLE_SCHEMA, s.TABLE_NAME) = (%s, %s) AND s.SEQ_IN_INDEX = 1 AND s.SUB_PART IS NULL
    AND s.INDEX_TYPE = 'BTREE' AND s.IS_VISIBLE = 'YES' AND c.IS_NULLABLE = 'NO'
    AND t.CREATE_OPTIONS NOT LIKE '%%partitioned%%'
    AND (c.EXTRA LIKE '%%auto_increment%%'
        OR (c.COLUMN_DEFAULT LIKE 'CURRENT_TIMESTAMP%%' AND c.EXTRA NOT LIKE '%%on update%%'))
ORDER BY c.EXTRA LIKE '%%auto_increment%%' DESC, s.COLUMN_NAME, s.INDEX_NAME LIMIT 1
"""


def with_range_key(connection: Connection, table: Table) -> Table | None:
    """Return a keyless table as if the column by which it is divided were its key. None: it cannot be divided."""
    read = {column.name for column in table.as_read.columns}
    for name, index in query(connection, _COLUMNS, (table.name.schema, table.name.name)):
        if name in read and _can_divide(table, name):
            return replace(table, key=(name,), key_index=index)
    return None


def in_ranges(table: Table, chunks: list[Chunk]) -> list[Chunk]:
    """Return chunks of the result of `with_range_key` with their ranges of values."""
    (name,) = table.key
    kind = arrow_schema(table).field(name).type
    return [
        replace(chunk, within=ValueRange(name, *(_edge(bound, kind) for bound in chunk.bounds))) for chunk in chunks
    ]


def _can_divide(table: Table, name: str) -> bool:
    """Return whether the log and the server place each value in the same range. In a table with a condition, a value
    that no Arrow type holds does not stop the run, but it has no known range. Dates that are published as text
    (``unrepresentable``) do not sort like dates."""
    axis = axis_of(table.column(name))
    if type(axis) is Axis:
        return axis.read == "{}"
    is_date = isinstance(axis, DateAxis) and pa.types.is_temporal(arrow_schema(table).field(name).type)
    return is_date and table.selection.where is None


def _edge(bound: tuple[KeyValue, ...] | None, kind: pa.DataType) -> Edge:
    if bound is None:
        return None
    (value,) = bound
    if isinstance(value, int):
        return value
    whole, _, fraction = str(value).partition(".")
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    return f"{whole}.{fraction.ljust(6, '0')}{zone}" if pa.types.is_timestamp(kind) else whole


_TOO_BIG = 1.5
"""A cell (key range) is cut again if its rows would fill more than this number of chunks."""

_ROUNDS = 40
_MOST_COPIES = 8
"""The maximum number of times that the values of a bound occur in a statement. Each of two bounds occurs twice in each
of two SELECTs."""

_Asked = tuple[str, list[KeyValue]]
"""A part of a statement, and its parameters."""

_MARK = "\0"
"""Placeholder for a parameter while a statement is assembled. No identifier can contain it."""


def plan_chunks(connection: Connection, table: Table, chunk_rows: int) -> list[Chunk]:
    """Return chunks of about ``chunk_rows`` rows each. Rows outside the key range that the table's condition selects
    are not counted.

    A keyless table is divided by the values of a column if possible (``value_ranges``). The result is a single chunk in
    four cases: the table has no key and no such column, the table has about ``chunk_rows`` rows or fewer,
    the type of the key cannot be cut (``axes.axis_of``), or the server may miss rows of the table in a statement with a
    condition (``schema.unsigned_difference``).
    """
    is_cut = table.rows > chunk_rows * _TOO_BIG and not unsigned_difference(table)
    if is_cut and table.keyless and (by_value := with_range_key(connection, table)):
        by_range = plan_chunks(connection, by_value, chunk_rows)
        return in_ranges(by_value, by_range) if len(by_range) > 1 else by_range
    axes = _axes(connection, table) if is_cut else []
    if not axes:
        return partition([], [table.rows])
    (_, rows_of_first), *chunks = _Planner(connection, table, axes, chunk_rows).plan(*_span(table, axes[0]))
    usable_bounds = set(increasing(connection, axes, [bound for bound, _ in chunks]))
    bounds: list[Bound] = []
    rows = [rows_of_first]
    for index, (bound, estimate) in enumerate(chunks):
        if index in usable_bounds:
            bounds.append(bound)
            rows.append(estimate)
        else:
            rows[-1] += estimate
    return partition(bounds, [round(estimate) for estimate in rows])


def plan_readable(connection: Connection, table: Table, chunk_rows: int) -> list[Chunk]:
    """Call `plan_chunks`. If the server cannot read the table, return the whole table as one chunk, whose read then
    reports the error (`driver.is_of_table`)."""
    try:
        return plan_chunks(connection, table, chunk_rows)
    except pymysql.MySQLError as error:
        if not is_of_table(error):
            raise
        return partition([], [table.rows])


def key_range(table: Table, low: int | None, high: int | None) -> list[Chunk]:
    """Implements `Source.key_range`."""
    axis = None if table.keyless or unsigned_difference(table) else axis_of(table.column(table.key[0]))
    # Only integers are read as they are stored, by an axis without further rules.
    if type(axis) is not Axis or axis.read != "{}":
        return []
    return [Chunk(0, None if low is None else (low,), None if high is None else (high,))]


def where(table: Table, chunk: Chunk) -> tuple[str, list[KeyValue]]:
    """Return the SQL condition of a chunk, with ``?`` markers, and the parameters of the condition. The condition is
    empty for an unbounded chunk."""
    lower, upper = chunk.bounds
    depth = max(len(lower or ()), len(upper or ()))
    key = table.key if chunk.within is None else (chunk.within.column,)
    axes = [axis for name in key[:depth] if (axis := axis_of(table.column(name)))]
    condition, params = _range(axes, lower, upper)
    return condition.replace(_MARK, "?"), params


@dataclass
class _Cell:
    """A key range during planning.

    ``fixed`` has the leading key values that are equal in all rows of the range. ``rows`` is the number of rows that
    EXPLAIN estimates. ``final`` is true if the range cannot be cut further.
    """

    lower: Bound | None
    upper: Bound | None
    fixed: Bound = ()
    rows: float = 0.0
    final: bool = False


class _Planner:
    """Cuts the keys of one table into cells (key ranges), and joins small neighbouring cells to form chunks."""

    def __init__(self, connection: Connection, table: Table, axes: Sequence[Axis], chunk_rows: int) -> None:
        self._connection = connection
        self._table = table
        self._axes = axes
        self._chunk_rows = chunk_rows
        self._cutters = [TextCuts(connection, axis) if isinstance(axis, TextAxis) else axis for axis in axes]
        self._from = f"FROM {table_sql(table.name)} FORCE INDEX ({quote(table.key_index)})"

    def plan(self, lower: Bound | None = None, upper: Bound | None = None) -> list[tuple[Bound, float]]:
        """Return the lower bound and the estimated rows of each chunk. The lower bound of the first chunk is not used.

        :param lower: together with ``upper``, the range to cut. None: the range is unbounded on this side.
        """
        cells = [_Cell(lower, upper, rows=self._table.rows)]
        if lower or upper:
            self._estimate(cells)
        dives = 0
        for _ in range(_ROUNDS):
            scale = self._scale(cells)
            big = [cell for cell in cells if not cell.final and cell.rows * scale > self._chunk_rows * _TOO_BIG]
            if not big or dives > 100 + 10 * self._table.rows / self._chunk_rows:
                break
            parts = dict(zip(map(id, big), self._split(big, scale), strict=True))
            dives += sum(map(len, parts.values()))
            cells = [part for cell in cells for part in parts.get(id(cell), [cell])]
        return self._join(cells)

    def _scale(self, cells: Iterable[_Cell]) -> float:
        # For ranges of many pages, the server's estimate is doubled. The table's total row count shows how wrong the
        # estimates are.
        return min(1.0, self._table.rows / max(1.0, sum(cell.rows for cell in cells)))

    def _split(self, cells: Sequence[_Cell], scale: float) -> list[list[_Cell]]:
        """Cut each cell (key range) into several cells. A cell that cannot be cut along the current key column stays
        whole. In this case, more of its key values become ``fixed``, or the cell becomes ``final``."""
        pieces = [min(256, math.ceil(cell.rows * scale / self._chunk_rows) + 1) for cell in cells]
        split: list[list[_Cell]] = []
        for cell, cuts in zip(cells, self._cuts(cells, pieces), strict=True):
            bounds = [bound for cut in cuts if self._fits(bound := (*cell.fixed, cut))]
            # If no bound fits into a statement, accept a larger chunk.
            cell.final |= bool(cuts) and not bounds
            edges = [cell.lower, *bounds, cell.upper]
            split.append([_Cell(low, high, cell.fixed) for low, high in pairwise(edges)] if bounds else [cell])
        self._estimate([part for parts in split if len(parts) > 1 for part in parts])
        return split

    def _fits(self, bound: Bound) -> bool:
        return fits(self._connection, _MOST_COPIES * size_of(bound))

    def _cuts(self, cells: Sequence[_Cell], pieces: Sequence[int]) -> list[list[KeyValue]]:
        """Return the values at which to cut each cell (key range). The values belong to the first key column in which
        the first and the last key of the cell differ. The list of a cell is empty if the cell cannot be cut in this
        column."""
        cuts: list[list[KeyValue]] = [[] for _ in cells]
        wanted: dict[int, dict[int, Between]] = {}
        for number, (cell, ends) in enumerate(zip(cells, self._ends(cells), strict=True)):
            if ends is None:
                cell.rows, cell.final = 0.0, True
                continue
            first, last = ends
            depth = len(cell.fixed)
            while depth < len(first) and first[depth] == last[depth]:
                depth += 1
            cell.fixed = first[:depth]
            if depth < len(first):
                wanted.setdefault(depth, {})[number] = first[depth], last[depth], pieces[number]
        for depth, asked in wanted.items():
            cut_lists = self._cutters[depth].between(list(asked.values()))
            for (number, (value, *_)), cuts[number] in zip(asked.items(), cut_lists, strict=True):
                if not cuts[number]:
                    # The two values differ in Python, but the server treats them as equal.
                    cells[number].fixed += (value,)
        for cell in cells:
            cell.final |= len(cell.fixed) == len(self._axes)
        return cuts

    def _ends(self, cells: Sequence[_Cell]) -> list[tuple[Bound, Bound] | None]:
        """Return the first and the last key in each cell (key range). None: the cell is empty."""
        columns = ", ".join(axis.stored for axis in self._axes)
        orders = [", ".join(f"{quote(axis.column)} {way}" for axis in self._axes) for way in ("ASC", "DESC")]
        questions: list[_Asked] = []
        for number, cell in enumerate(cells):
            condition, params = self._where(cell)
            selects = [
                f"(SELECT {number}, {side}, {columns} {self._from}{condition} ORDER BY {order} LIMIT 1)"
                for side, order in enumerate(orders)
            ]
            questions.append((" UNION ALL ".join(selects), [*params, *params]))
        bounds: dict[tuple[int, int], Bound] = {}
        for some in batches(self._connection, questions, _asked_size, _BATCH):
            rows = _run(self._connection, " UNION ALL ".join(sql for sql, _ in some), _params(some))
            bounds |= {(number, side): tuple(key) for number, side, *key in rows}
        # A cell may have only one row, and this row may be deleted after the query for the first key and before the
        # query for the last key.
        return [
            (bounds[number, 0], bounds[number, 1]) if {(number, 0), (number, 1)} <= bounds.keys() else None
            for number in range(len(cells))
        ]

    def _estimate(self, cells: Sequence[_Cell]) -> None:
        """Set the estimated number of rows of each cell (key range)."""
        conditions = (self._where(cell) for cell in cells)
        statements = [(f"SELECT 1 {self._from}{condition}", params) for condition, params in conditions]
        done = 0
        for some in batches(self._connection, statements, _asked_size, _BATCH):
            # Send at least two SELECTs, because the server makes no estimate for a single SELECT with a forced index.
            twice = [*some, *(some if len(some) == 1 else ())]
            selects = " UNION ALL ".join(sql for sql, _ in twice)
            rows = _run(self._connection, f"EXPLAIN FORMAT=TRADITIONAL {selects}", _params(twice))
            for number, *_, estimate, _, _ in rows[: len(some)]:
                # If there is no estimate, the server knows that no row can match.
                cells[done + number - 1].rows = float(estimate or 0)
            done += len(some)

    def _where(self, cell: _Cell) -> tuple[str, list[KeyValue]]:
        condition, params = _range(self._axes, cell.lower, cell.upper)
        return (f" WHERE {condition}" if condition else ""), params

    def _join(self, cells: Sequence[_Cell]) -> list[tuple[Bound, float]]:
        """Join neighbouring cells (key ranges) as long as their combined rows fit into one chunk."""
        scale = self._scale(cells)
        chunks: list[tuple[Bound, float]] = []
        for cell in cells:
            rows = cell.rows * scale
            if chunks and chunks[-1][1] + rows <= self._chunk_rows:
                chunks[-1] = chunks[-1][0], chunks[-1][1] + rows
            else:
                chunks.append((cell.lower or (), rows))
        return chunks


def _span(table: Table, axis: Axis) -> tuple[Bound | None, Bound | None]:
    """Return the key range of the rows that the run will request from the server."""
    least, greatest = pushed_span(table)
    beyond = None if greatest is None else axis.after(greatest)
    return None if least is None else (least,), None if beyond is None else (beyond,)


def _axes(connection: Connection, table: Table) -> list[Axis]:
    """Return the leading key columns along which chunks can be cut. Each of these columns is indexed as a whole, all
    are indexed in the same direction, and each type has an axis."""
    parts = query(
        connection,
        "SELECT SUB_PART, COLLATION FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = %s ORDER BY SEQ_IN_INDEX",
        (table.name.schema, table.name.name, table.key_index),
    )
    axes: list[Axis] = []
    for name, (prefix, direction) in zip(table.key, parts, strict=False):
        axis = axis_of(table.column(name))
        if axis is None or prefix is not None or direction != parts[0][1]:
            break
        axes.append(axis)
    return axes


def _range(axes: Sequence[Axis], lower: Bound | None, upper: Bound | None) -> tuple[str, list[KeyValue]]:
    """Return the condition for keys from ``lower`` up to but not including ``upper``. The server evaluates this form of
    the condition as ranges of the index."""
    low, high = lower or (), upper or ()
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    conditions = [f"{quote(axis.column)} = {axis.bound.format(_MARK)}" for axis in axes[:shared]]
    params = list(low[:shared])
    for bound, beyond, at in ((low[shared:], ">", ">="), (high[shared:], "<", "<")):
        if bound:
            condition, values = _beyond(axes[shared:], bound, beyond, at)
            conditions.append(condition)
            params += values
    return " AND ".join(conditions), params


def _beyond(axes: Sequence[Axis], bound: Bound, beyond: str, at: str) -> tuple[str, list[KeyValue]]:
    """Return the condition for keys on one side of ``bound``. ``at`` is the operator for the last value of the
    bound."""
    (axis, *axes), (value, *rest) = axes, bound
    column, parameter = quote(axis.column), axis.bound.format(_MARK)
    if not rest:
        return f"{column} {at} {parameter}", [value]
    condition, values = _beyond(axes, tuple(rest), beyond, at)
    return f"({column} {beyond} {parameter} OR ({column} = {parameter} AND {condition}))", [value, value, *values]


def _run(connection: Connection, sql: str, params: Sequence[KeyValue]) -> list[tuple[Any, ...]]:
    if params:
        sql = sql.replace("%", "%%").replace(_MARK, "%s")
    return query(connection, sql, params)


def _asked_size(asked: _Asked) -> int:
    sql, params = asked
    return len(sql.encode()) + size_of(params)


def _params(asked: Iterable[_Asked]) -> list[KeyValue]:
    return [value for _, params in asked for value in params]


# Checks the values of the first and last rows of tables, in key order (`sources.planning.survey`).


ROWS = 1000
"""Maximum number of rows at each end of the key."""
_MILLISECONDS = 2000

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
# Depending on sql_mode, the column may contain days that the month does not have.
_IS_NO_DATE = "MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0 OR DAYOFMONTH({0}) > DAYOFMONTH(LAST_DAY({0}))"
_CHARACTERS = 1000
"""The maximum number of characters that are checked in each text."""
# The server converts an unassigned code to a question mark. In these character sets, the byte of the question mark does
# not occur in any other character.
_IS_NO_TEXT = (
    "LENGTH(CAST({0} AS BINARY)) - LENGTH(REPLACE(CAST({0} AS BINARY), 0x3F, '')) < "
    "LENGTH(CAST(CONVERT({0} USING utf8mb4) AS BINARY)) "
    "- LENGTH(REPLACE(CAST(CONVERT({0} USING utf8mb4) AS BINARY), 0x3F, ''))"
)
_IS_REPLACED = "LOCATE(0xEFBFBD, CAST(CONVERT({0} USING utf8mb4) AS BINARY)) > 0"
_IS_SURROGATE = "REGEXP_LIKE(HEX({0}), '^(?:.{{4}})*D[89A-F]')"
_OF_CHARSETS = {"ucs2": _IS_SURROGATE, "tis620": _IS_REPLACED, "big5": f"({_IS_NO_TEXT}) OR {_IS_REPLACED}"}


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """Sample the planned tables. Return a problem for each column in which a sampled value would stop the run.

    :raises LockNotGranted: a session keeps a table locked against readers.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        concerned += [plan.table for plan in plans]

        def samples(table: Table, columns: Sequence[ColumnType]) -> Iterator[Sequence[int]]:
            try:
                ((rows, *counts),) = query(connection, _statement(table, columns))
            except pymysql.OperationalError as error:
                if error.args[0] not in INTERRUPTED:
                    raise
                gave_up(table)
                return
            # SUM returns a DECIMAL, and NULL if there are no rows.
            yield [int(rows), *(int(count or 0) for count in counts)]

        tables = read_tables(connection, [plan.table for plan in plans])
        return problems_of(plans, tables, _at_risk, samples, _stops_always)


def _at_risk(table: Table) -> list[ColumnType]:
    return [column for column in column_types(table) if column.policy == "error" and _is_odd(column)]


def _stops_always(table: Table, column: ColumnType) -> bool:
    return column.family is Family.TEXT and table.identifies(column.name)


def _is_odd(column: ColumnType) -> str:
    """Return an SQL condition that finds the values of the column that no Arrow type holds. Empty: there are no such
    values in this type."""
    if column.family in _MOMENTS:
        odd = _IS_NO_DATE
    elif column.family is Family.TEXT and has_gaps(column.charset):
        odd = _OF_CHARSETS.get(column.charset, _IS_NO_TEXT)
    else:
        return ""
    return odd.format(quote(column.name))


def _sampled(column: ColumnType) -> str:
    name = quote(column.name)
    return f"LEFT({name}, {_CHARACTERS}) AS {name}" if column.family is Family.TEXT else name


def _statement(table: Table, columns: Sequence[ColumnType]) -> str:
    beside = [column for column in columns if column.name not in table.key]
    looked_at = [*map(quote, table.key), *(_sampled(column) for column in beside)]
    select = f"SELECT {', '.join(looked_at)} FROM {table_sql(table.name)}"
    some = f"({select} LIMIT {ROWS})"
    if table.key:
        ends = [
            f"({select} FORCE INDEX ({quote(table.key_index)}) "
            f"ORDER BY {', '.join(f'{quote(name)} {way}' for name in table.key)} LIMIT {ROWS})"
            for way in ("ASC", "DESC")
        ]
        # One sample is from the beginning of the key, the other from its end. Each row has a unique key, so UNION
        # removes only the duplicates of rows that are in both samples.
        some = " UNION ".join(ends)
    counts = [f"SUM(COALESCE({_is_odd(column)}, FALSE))" for column in columns]
    return f"SELECT /*+ MAX_EXECUTION_TIME({_MILLISECONDS}) */ COUNT(*), {', '.join(counts)} FROM ({some}) AS looked_at"
