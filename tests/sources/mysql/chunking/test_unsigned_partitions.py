"""Tables that are partitioned by a difference of unsigned values. The difference depends on the sql_mode of the session
for which the server opened the table."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

SIGNED, UNSIGNED = "NO_UNSIGNED_SUBTRACTION", ""
HUGE = 2**64 - 1
TABLES = {
    # Kind of id, partitions, the mode of the application, its keys, a condition on them, and the one that meets it.
    "hash": ("INT UNSIGNED", "HASH (id - 10) PARTITIONS 4", SIGNED, [1, 5, 50], "id = 5", 5),
    "range": (
        "INT UNSIGNED",
        "RANGE (`id` - 10) (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN MAXVALUE)",
        SIGNED,
        [1, 5, 50],
        "id = 5",
        5,
    ),
    "range of years": (
        "YEAR",
        "RANGE (id - 2000) (PARTITION a VALUES LESS THAN (20), PARTITION b VALUES LESS THAN MAXVALUE)",
        SIGNED,
        [1990, 2010, 2024],
        "id < 2000",
        1990,
    ),
    # With the other mode, the server passes 50 over without an error.
    "huge bounds": (
        "BIGINT UNSIGNED",
        f"RANGE (id - 10) (PARTITION a VALUES LESS THAN ({HUGE - 600}), PARTITION b VALUES LESS THAN MAXVALUE)",
        UNSIGNED,
        [50, 51, HUGE],
        "id = 50",
        50,
    ),
    "subpartitions": (
        "INT UNSIGNED",
        "RANGE (id) SUBPARTITION BY HASH (id - 10) SUBPARTITIONS 3 (PARTITION a VALUES LESS THAN MAXVALUE)",
        SIGNED,
        [1, 5, 50],
        "id = 5",
        5,
    ),
}


@pytest.mark.parametrize("opened", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("name", TABLES)
def test_no_row_is_lost_however_the_server_has_opened_the_table(
    name: str, opened: str, mysql: MysqlServer, schema: str
) -> None:
    kind, by, mode, keys, condition, held = TABLES[name]
    with mysql.connect(database=schema, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET sql_mode = '{mode}'")
        cursor.execute(f"CREATE TABLE t (id {kind}, n INT, PRIMARY KEY (id, n)) PARTITION BY {by}")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({key}, {n})' for key in keys for n in range(40))}")
        cursor.execute("ANALYZE TABLE t")
        cursor.execute("FLUSH TABLES")
    open_in_all_caches(mysql, schema, opened)
    source = MysqlSource(settings_of(mysql))
    (table,) = source.tables_of(source.preflight([f"{schema}.t"], TableOptions(consistency="watermark")))
    for planned, wanted in (
        (table, [(key, n) for key in keys for n in range(40)]),
        (replace(table, selection=Selection(parse(condition))), [(held, n) for n in range(40)]),
    ):
        with source.reader(planned, "watermark", LockPolicy()) as reader:
            rows = [
                (int(row["id"]), row["n"])
                for chunk in source.plan_chunks(planned, 10)
                for batch in reader.read(chunk)
                for row in batch.to_pylist()
            ]
        assert len(rows) == len({*rows})
        assert {*rows} >= {*wanted}


def open_in_all_caches(mysql: MysqlServer, schema: str, mode: str) -> None:
    """Have the server keep the table open, as this mode has it, for whichever session comes next."""
    with ExitStack() as stack:
        for _ in range(int(mysql.query("SELECT @@table_open_cache_instances")[0][0])):
            connection = stack.enter_context(mysql.connect(database=schema))
            with connection.cursor() as cursor:
                cursor.execute(f"SET sql_mode = '{mode}'")
                cursor.execute("SELECT 1 FROM t LIMIT 1")


def test_bounds_that_only_some_sessions_can_open_are_refused(mysql: MysqlServer, schema: str) -> None:
    parts = "(PARTITION low VALUES LESS THAN (-5), PARTITION high VALUES LESS THAN MAXVALUE)"
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET sql_mode = '{SIGNED}'")
        cursor.execute(f"CREATE TABLE t (id INT UNSIGNED PRIMARY KEY) PARTITION BY RANGE (id - 10) {parts}")
        cursor.execute(f"CREATE TABLE fine (id INT PRIMARY KEY) PARTITION BY RANGE (id - 10) {parts}")
        cursor.execute("FLUSH TABLES")
    source = MysqlSource(settings_of(mysql))
    with pytest.raises(PreflightError, match=r"`id` - 10.* is unsigned.* NO_UNSIGNED_SUBTRACTION") as refused:
        source.preflight([f"{schema}.t", f"{schema}.fine"])
    assert [problem.table for problem in refused.value.problems] == [f"{schema}.t"]
    source.preflight([f"{schema}.fine"])
