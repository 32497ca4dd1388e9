"""DDL that changes no row stops neither a run nor the next copy; DDL that loses rows without a trace stops both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import PreflightError, SchemaChanged
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from tests.sources.mysql.log.reading import LogReading, executed, run

LOCK = LockPolicy()
DAILY = (
    "(id BIGINT, day DATE, v INT, w INT, PRIMARY KEY (id, day)) PARTITION BY RANGE COLUMNS (day) "
    "(PARTITION p1 VALUES LESS THAN ('2026-01-01'), PARTITION p2 VALUES LESS THAN ('2026-02-01'))"
)
LISTS = (
    "(id INT, v INT, PRIMARY KEY (id, v)) PARTITION BY LIST (v) "
    "(PARTITION p1 VALUES IN (1, 2), PARTITION p2 VALUES IN (3, 4))"
)
OPEN = (
    "(id INT, v INT, PRIMARY KEY (id, v)) PARTITION BY RANGE (v) "
    "(PARTITION p1 VALUES LESS THAN (10), PARTITION pmax VALUES LESS THAN MAXVALUE)"
)
HASHED = "(id INT PRIMARY KEY, v INT) PARTITION"
PLAIN = "(id INT PRIMARY KEY AUTO_INCREMENT, v INT, w INT, INDEX old (w), CONSTRAINT c_{name} CHECK (w > 0))"
DAILY_ROWS = ["(1, '2025-12-31', 1, 1)", "(2, '2026-01-15', 2, 2)", "(3, '2026-01-16', 3, 3)"]
ROWS = ["(1, 1, 1)", "(2, 2, 2)", "(3, 3, 3)"]
PAIRS = ["(1, 1)", "(2, 2)", "(3, 3)"]

# A table, its rows, one that is inserted afterwards, and what is done to it.
HARMLESS = [
    (
        DAILY,
        DAILY_ROWS,
        "(9, '2026-02-03', 9, 9)",
        "ADD PARTITION (PARTITION p3 VALUES LESS THAN ('2026-03-01') COMMENT 'x)')",
    ),
    (
        OPEN,
        PAIRS,
        "(9, 15)",
        "REORGANIZE PARTITION pmax INTO (PARTITION p2 VALUES LESS THAN (20), PARTITION pmax VALUES LESS THAN MAXVALUE)",
    ),
    (LISTS, PAIRS, "(9, 7)", "ADD PARTITION (PARTITION p3 VALUES IN (7))"),
    (f"{HASHED} BY HASH (id) PARTITIONS 2", PAIRS, "(9, 9)", "ADD PARTITION PARTITIONS 3"),
    (f"{HASHED} BY LINEAR KEY (id) PARTITIONS 4", PAIRS, "(9, 9)", "COALESCE PARTITION 3"),
    (f"{HASHED} BY KEY () PARTITIONS 2", PAIRS, "(9, 9)", "REBUILD PARTITION ALL"),
    *(
        (DAILY, DAILY_ROWS, "(9, '2026-01-03', 9, 9)", change)
        for change in (
            "ANALYZE PARTITION p1",
            "OPTIMIZE PARTITION p1",
            "REBUILD PARTITION p1",
            "REORGANIZE PARTITION p1, p2 INTO (PARTITION p12 VALUES LESS THAN ('2026-02-01'))",
        )
    ),
    *(
        (PLAIN, ROWS, "(9, 9, 9)", change)
        for change in (
            "ADD INDEX a (v), ADD INDEX b (w), DROP INDEX old",
            "ENGINE = InnoDB",
            "FORCE",
            "AUTO_INCREMENT = 1000",
            "STATS_AUTO_RECALC = 0",
            "ADD CONSTRAINT d_{name} CHECK (v > 0)",
            "DROP CHECK c_{name}",
            "ALTER CHECK c_{name} NOT ENFORCED, AUTO_INCREMENT 7 COMMENT 'x', ADD UNIQUE (w, v), ALGORITHM=COPY",
        )
    ),
]
NOT_KNOWN_IN_THE_PAST = [
    "REBUILD PARTITION ALL",
    "REBUILD PARTITION p1",
    "REORGANIZE PARTITION p1, p2 INTO (PARTITION p12 VALUES LESS THAN ('2026-02-01'))",
    "ENGINE = InnoDB",
]


class Window:
    """A recorded position of tables, and what is done after it."""

    def __init__(self, mysql: MysqlServer, schema: str, definition: str, rows: Sequence[str]) -> None:
        self.mysql, self.schema = mysql, schema
        self.source = MysqlSource(settings_of(mysql))
        self.names: list[str] = []
        self.make("t", definition, rows)

    def make(self, name: str, definition: str, rows: Sequence[str]) -> None:
        self.names.append(name)
        self.do(
            f"CREATE TABLE {name} {definition.format(name=name)}", *(f"INSERT INTO {name} VALUES {row}" for row in rows)
        )

    @cached_property
    def plans(self) -> list[TablePlan]:
        return self.source.preflight([f"{self.schema}.{name}" for name in self.names])

    def record(self) -> None:
        self.point = self.source.record_initial(self.plans, LOCK)
        self.reading = LogReading(self.mysql, self.schema, *self.names)
        self.reading.initial, self.reading.tables = GtidSet.expect(self.point.position), self.point.tables

    def do(self, *statements: str) -> None:
        with self.mysql.connect(database=self.schema) as connection:
            run(connection, *statements)

    def rows(self, name: str = "t") -> list[tuple[Any, ...]]:
        return sorted(self.mysql.query(f"SELECT * FROM {self.schema}.{name}"), key=str)

    def refused(self) -> dict[str, str]:
        point, tables = self.point, self.point.tables
        found = self.source.refusals_since(point.identity, point.position, tables, None, StepOptions())
        return {table.name: why for table, why in found.items()}

    def check_tables(self) -> None:
        self.source.of_run(self.point.identity, self.point.position).check_tables(self.point.tables)


def keyed(table: Table, rows: Iterable[tuple[Any, ...] | None]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Rows by their keys."""
    at = [[column.name for column in table.columns].index(name) for name in table.key]
    return {tuple(row[number] for number in at): row for row in rows if row is not None}


@pytest.mark.slow
def test_ddl_that_changes_no_row(mysql: MysqlServer, schema: str) -> None:
    """Rows that are read after it go back to those of the position, and those of the position forward to these."""
    window = Window(mysql, schema, PLAIN, ROWS)
    for number, (definition, rows, _, _) in enumerate(HARMLESS):
        window.make(f"t{number:02}", definition, rows)
    window.record()
    before = {name: window.rows(name) for name in window.names}
    for number, (*_, row, change) in enumerate(HARMLESS):
        name = f"t{number:02}"
        window.do(f"DELETE FROM {name} WHERE id = 1", f"ALTER TABLE {name} {change.format(name=name)}")
        window.do(f"INSERT INTO {name} VALUES {row}")
    window.do("CREATE TABLE other (a INT, b INT) /*!90500 COMMENT 'later' */")
    window.check_tables()
    assert window.refused() == {}
    changes = window.reading.read(forward=True)
    for table, (*_, change) in zip(window.point.tables[1:], HARMLESS, strict=True):
        name = table.name.name
        then, now = keyed(table, before[name]), keyed(table, window.rows(name))
        befores, afters = (keyed(table, found[name].values()) for found in (changes.before, changes.after))
        touched = befores.keys() | afters.keys()
        for start, images, end in (now, befores, then), (then, afters, now):
            assert {key: row for key, row in start.items() if key not in touched} | images == end, change

    # The same since a position at which nothing was recorded: then some of it is not known to change none.
    as_of = GtidSet.expect(window.point.position)
    for plan, (*_, change) in zip(window.plans[1:], HARMLESS, strict=True):
        known = change not in NOT_KNOWN_IN_THE_PAST
        with nullcontext() if known else pytest.raises(PreflightError, match=f"ALTER TABLE … {change.split()[0]}"):
            window.source.check_past(as_of, [plan], StepOptions())


LOSES_A_ROW = {
    "REBUILD PARTITION p1": (LISTS, "(8, 8)"),
    "REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES IN (1, 2, 5))": (LISTS, "(8, 8)"),
    "REBUILD PARTITION ALL": (DAILY, "(8, '2026-03-03', 8, 8)"),
    "REORGANIZE PARTITION p1, p2 INTO (PARTITION p12 VALUES LESS THAN ('2026-02-05'))": (
        DAILY,
        "(8, '2026-03-03', 8, 8)",
    ),
    # No row is out of place.
    "REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES IN (1))": (LISTS, "(8, 2)"),
}


@pytest.mark.parametrize("change", LOSES_A_ROW)
def test_partitions_that_are_rebuilt_lose_rows_that_belong_to_none(
    change: str, mysql: MysqlServer, schema: str
) -> None:
    definition, row = LOSES_A_ROW[change]
    window = Window(mysql, schema, definition, [])
    window.do(
        "CREATE TABLE x LIKE t",
        "ALTER TABLE x REMOVE PARTITIONING",
        f"INSERT INTO x VALUES {row}",
        "ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE x WITHOUT VALIDATION",
    )
    window.record()
    assert len(window.rows()) == 1
    window.do(f"ALTER TABLE t {change}")
    assert window.rows() == []
    assert "ALTER TABLE … RE" in window.refused()["t"]
    with pytest.raises(SchemaChanged, match="drops rows"):
        window.reading.read()


RANGES = "BY RANGE ({}) (PARTITION p1 VALUES LESS THAN (5), PARTITION p2 VALUES LESS THAN MAXVALUE)"
SPLIT = "REORGANIZE PARTITION p1 INTO (PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN (5))"
FAILS_IN_ANOTHER_SESSION = [
    ("BY HASH (10 DIV v) PARTITIONS 2", "COALESCE PARTITION 1"),
    ("BY LINEAR HASH (v DIV 3 - 5) PARTITIONS 2", "ADD PARTITION PARTITIONS 2"),
    ("BY HASH (MOD(10, v)) PARTITIONS 2", "REBUILD PARTITION ALL"),
    (RANGES.format("v - 10"), SPLIT),
    (
        "BY RANGE (id) SUBPARTITION BY HASH (10 - v * 4) (PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "REBUILD PARTITION p1",
    ),
]


@pytest.mark.parametrize(("partitions", "change"), FAILS_IN_ANOTHER_SESSION)
def test_partitions_that_cannot_be_computed_in_another_session(
    partitions: str, change: str, mysql: MysqlServer, schema: str
) -> None:
    """The server drops a row if the sql_mode of the altering session makes an error of its partition's expression."""
    window = Window(mysql, schema, f"(id INT, v INT UNSIGNED, PRIMARY KEY (id, v)) PARTITION {partitions}", [])
    window.do("SET sql_mode = 'NO_UNSIGNED_SUBTRACTION'", "INSERT INTO t VALUES (1, 0), (2, 3), (3, 30)")
    window.record()
    window.do("OPTIMIZE TABLE t", "ALTER TABLE t FORCE")
    assert window.refused() == {}
    assert len(window.rows()) == 3
    window.do("SET sql_mode = 'TRADITIONAL'", f"ALTER TABLE t {change}")
    assert len(window.rows()) < 3
    assert f"ALTER TABLE … {change.split()[0]} PARTITION (it drops rows" in window.refused()["t"]
    with pytest.raises(SchemaChanged, match="sql_mode"):
        window.reading.read()
    with pytest.raises(PreflightError, match="sql_mode"):
        window.source.check_past(GtidSet.expect(window.point.position), window.plans, StepOptions())


@pytest.mark.parametrize("expression", ["v DIV 1000", "MOD(v, 7) + 2", "id - 5", "ABS(id) * 2 - 3"])
def test_partitions_that_every_session_computes(expression: str, mysql: MysqlServer, schema: str) -> None:
    definition = f"(id INT, v INT UNSIGNED, PRIMARY KEY (id, v)) PARTITION BY HASH ({expression}) PARTITIONS 2"
    window = Window(mysql, schema, definition, ["(1, 0)", "(2, 3)"])
    window.record()
    window.do(
        "SET sql_mode = 'TRADITIONAL'", "ALTER TABLE t REBUILD PARTITION ALL", "ALTER TABLE t COALESCE PARTITION 1"
    )
    assert window.refused() == {}
    assert len(window.rows()) == 2


def test_rows_that_belong_to_no_partition_come_between_the_identities_and_the_position(
    mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_cdc.sources.mysql.server import server
    from airflow_provider_cdc.sources.mysql.steps import snapshot

    window = Window(mysql, schema, DAILY, DAILY_ROWS)
    window.do("CREATE TABLE x LIKE t", "ALTER TABLE x REMOVE PARTITIONING")
    window.do("INSERT INTO x VALUES (8, '2026-03-03', 8, 8)")
    executed_of = server.executed

    def with_ddl_around(connection: Any) -> GtidSet:
        window.do("ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE x WITHOUT VALIDATION")
        position = executed_of(connection)
        window.do("ALTER TABLE t REBUILD PARTITION p1")
        return position

    monkeypatch.setattr(snapshot, "executed", with_ddl_around)
    window.record()
    assert "REBUILD" in window.refused()["t"]
    with pytest.raises(SchemaChanged, match="drops rows"):
        window.reading.read()


@pytest.mark.slow
def test_what_is_known_since_a_past_position_serves_the_next_copy(mysql: MysqlServer, schema: str) -> None:
    window = Window(mysql, schema, DAILY, DAILY_ROWS)
    past = executed(mysql)
    window.do("INSERT INTO t VALUES (8, '2026-01-03', 8, 8)", "ALTER TABLE t ADD INDEX (v)")
    window.point = window.source.record_past(past, window.plans, StepOptions())
    window.do("ALTER TABLE t REBUILD PARTITION ALL", "ALTER TABLE t ENGINE = InnoDB")
    assert window.refused() == {}
    # The table was rewritten after this one, so its earlier contents are unknown.
    window.point = window.source.record_past(past, window.plans, StepOptions())
    assert "REBUILD PARTITION" in window.refused()["t"]


UNLOGGED = ["DROP TABLE t", f"CREATE TABLE t {DAILY}", "INSERT INTO t VALUES (8, '2026-01-03', 8, 8)"]


def test_a_new_partition_explains_no_other_tables(mysql: MysqlServer, schema: str) -> None:
    """A dump that is loaded unlogged, and then the partition of the day."""
    window = Window(mysql, schema, DAILY, DAILY_ROWS)
    window.record()
    added = "ALTER TABLE t ADD PARTITION (PARTITION p{0} VALUES LESS THAN ('2026-0{0}-01'))"
    window.do(added.format(3), added.format(4))
    window.check_tables()
    window.do("SET sql_log_bin = 0", *UNLOGGED, "SET sql_log_bin = 1", added.format(5))
    with pytest.raises(SchemaChanged, match="TABLE_ID"):
        window.check_tables()
    assert "TABLE_ID" in window.refused()["t"]


BY_A_COPY = {
    "ADD CHECK (n > 0)": "old_alter_table = OFF",
    "FORCE": "old_alter_table = ON",
    "ALGORITHM=COPY, ADD PARTITION (PARTITION q VALUES LESS THAN (20))": "old_alter_table = OFF",
    "ADD PARTITION (PARTITION q VALUES LESS THAN (20))": "old_alter_table = ON",
    "ALGORITHM=INPLACE, OPTIMIZE PARTITION p": "old_alter_table = ON",
    "REBUILD PARTITION p": "old_alter_table = ON",
}


@pytest.mark.parametrize("change", BY_A_COPY)
def test_ddl_that_may_compute_stored_columns_anew(change: str, mysql: MysqlServer, schema: str) -> None:
    """No row image is logged, and values are computed in the time zone of the session that alters the table."""
    window = Window(
        mysql,
        schema,
        "(id INT PRIMARY KEY, n INT, at TIMESTAMP, day DATE AS (DATE(at)) STORED) "
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))",
        ["(1, 1, '2024-01-01 23:30:00', DEFAULT)"],
    )
    window.record()
    before = window.rows()
    window.do(f"SET time_zone = '+05:30', {BY_A_COPY[change]}", f"ALTER TABLE t {change}")
    assert window.rows() != before
    assert "ALTER TABLE … " in window.refused()["t"]
    with pytest.raises(SchemaChanged):
        window.reading.read()


def test_stored_columns_that_are_written_anew_in_place(mysql: MysqlServer, schema: str) -> None:
    definition = "(id INT PRIMARY KEY, n INT, at TIMESTAMP, day DATE AS (DATE(at)) STORED)"
    window = Window(mysql, schema, definition, ["(1, 1, '2024-01-01 23:30:00', DEFAULT)"])
    window.record()
    before = window.rows()
    window.do("SET time_zone = '+05:30', old_alter_table = ON", "ALTER TABLE t FORCE, ALGORITHM=INPLACE")
    assert window.rows() == before
    assert window.refused() == {}


def test_a_table_that_was_of_another_engine(mysql: MysqlServer, schema: str) -> None:
    """The rows of a MERGE table are not logged for the MERGE table itself."""
    mysql.query(f"CREATE TABLE {schema}.m (id INT PRIMARY KEY) ENGINE = MyISAM")
    mysql.query(f"INSERT INTO {schema}.m VALUES (1)")
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY) ENGINE = MERGE UNION = ({schema}.m)")
    past = executed(mysql)
    mysql.query(f"INSERT INTO {schema}.m VALUES (2)")
    mysql.query(f"ALTER TABLE {schema}.t ENGINE = InnoDB")
    source = MysqlSource(settings_of(mysql))
    plans = source.preflight([f"{schema}.t"])
    with pytest.raises(PreflightError, match="another engine"):
        source.check_past(past, plans, StepOptions())


def test_dropping_a_constraint_may_end_cascades(mysql: MysqlServer, schema: str) -> None:
    window = Window(mysql, schema, PLAIN, ROWS)
    window.record()
    window.do("ALTER TABLE t DROP CONSTRAINT c_t")
    assert "DROP CONSTRAINT" in window.refused()["t"]


def test_a_table_of_which_its_user_sees_no_numbers(mysql: MysqlServer, schema: str) -> None:
    """Without PROCESS, a user cannot see whether partitions were exchanged around the position."""
    window = Window(mysql, schema, DAILY, DAILY_ROWS)
    user = f"u_{schema[-8:]}"
    window.do(f"CREATE USER {user}", f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {user}")
    window.do(f"GRANT SELECT ON {schema}.* TO {user}")
    window.source = MysqlSource(replace(settings_of(mysql), user=user, password=""))
    window.record()
    window.do("ALTER TABLE t ENGINE = InnoDB")
    assert window.refused() == {}
    window.do("ALTER TABLE t REBUILD PARTITION p1")
    assert "REBUILD PARTITION" in window.refused()["t"]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_view_from_before_a_table_was_written_anew_is_refused_by_the_server(
    keyed: bool, mysql: MysqlServer, schema: str
) -> None:
    """A reader with ``lock`` may read its first row after the DDL. It must not see an empty table."""
    key = ", PRIMARY KEY (id, v)" if keyed else ""
    definition = OPEN.replace(", PRIMARY KEY (id, v)", key)
    for change in (
        "FORCE",
        "ADD CHECK (v > 0)",
        "OPTIMIZE PARTITION p1",
        "REBUILD PARTITION ALL",
        "REORGANIZE PARTITION p1 INTO (PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN (10))",
    ):
        mysql.query(f"CREATE TABLE {schema}.t {definition}")
        mysql.query(f"INSERT INTO {schema}.t VALUES (1, 1), (2, 20)")
        with mysql.connect(database=schema, autocommit=False) as connection:
            run(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            mysql.query(f"ALTER TABLE {schema}.t {change}")
            with pytest.raises(pymysql.OperationalError, match="definition has changed"):
                run(connection, "SELECT * FROM t")
        mysql.query(f"DROP TABLE {schema}.t")
