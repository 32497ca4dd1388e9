"""Rows in a wrong partition: the server does not find them when it searches a range of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.chunking import pushed_conditions
from airflow_provider_cdc.sources.mysql.server.session import Connection, query
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

PARTITIONED = (
    "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (1000), PARTITION `b``%s` VALUES LESS THAN (2000), "
    "PARTITION c VALUES LESS THAN MAXVALUE)"
)


@pytest.mark.parametrize("stray", [3, 2500])
def test_rows_that_were_exchanged_into_a_partition_of_others_are_not_lost(
    mysql: MysqlServer, schema: str, stray: int
) -> None:
    """Alone under their key, and as the second one of it."""
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v int) {PARTITIONED}")
    mysql.query(f"CREATE TABLE {schema}.x (id int PRIMARY KEY, v int)")
    for table, keys in ("t", range(0, 3000, 2)), ("x", (*range(1000, 2000, 2), stray)):
        mysql.query(f"INSERT INTO {schema}.{table} VALUES {', '.join(f'({key}, 1)' for key in keys)}")
    source = MysqlSource(settings_of(mysql))
    source.preflight([f"{schema}.t"], TableOptions())

    mysql.query(f"ALTER TABLE {schema}.t EXCHANGE PARTITION `b``%s` WITH TABLE {schema}.x WITHOUT VALIDATION")
    with pytest.raises(PreflightError, match="partition b`%s has rows that belong to another partition") as refused:
        source.preflight([f"{schema}.t"], TableOptions())
    assert "REPAIR PARTITION `b``%s`" in str(refused.value)

    # The hint helps, once no other row has the key: this one does not find what is misplaced.
    mysql.query(f"DELETE FROM {schema}.t WHERE id = {stray}")
    mysql.query(f"ALTER TABLE {schema}.t REPAIR PARTITION `b``%s`")
    assert mysql.query(f"SELECT COUNT(*) FROM {schema}.t WHERE id = {stray}")[0][0] == 1
    source.preflight([f"{schema}.t"], TableOptions())


@pytest.mark.parametrize("stray", [1, 9])
@pytest.mark.parametrize(
    "by",
    [
        "LIST (id) (PARTITION odd VALUES IN (1, 3, 5, 7, 9), PARTITION even VALUES IN (2, 4, 6, 8))",
        "HASH (id) (PARTITION even, PARTITION odd)",
        "LINEAR HASH (id + 1) (PARTITION odd, PARTITION even)",
    ],
)
def test_rows_beyond_the_ends_of_a_list_or_hash_are_told(mysql: MysqlServer, schema: str, by: str, stray: int) -> None:
    """For a range of few values, the server searches only the partitions to which these values belong."""
    mysql.query(f"CREATE TABLE {schema}.t (id int, n int, PRIMARY KEY (id, n)) PARTITION BY {by}")
    mysql.query(f"CREATE TABLE {schema}.x (id int, n int, PRIMARY KEY (id, n))")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 1), (5, 1), (2, 1), (8, 1)")
    source = MysqlSource(settings_of(mysql))
    source.preflight([f"{schema}.t"], TableOptions())
    mysql.query(f"INSERT INTO {schema}.x VALUES (2, 1), (8, 1), ({stray}, 1)")
    mysql.query(f"ALTER TABLE {schema}.t EXCHANGE PARTITION even WITH TABLE {schema}.x WITHOUT VALIDATION")
    with pytest.raises(PreflightError, match="partition even has rows that belong to another partition"):
        source.preflight([f"{schema}.t"], TableOptions())


@pytest.mark.parametrize("columns", ["", "id"])
def test_partitions_by_keys_that_were_exchanged_for_one_another_are_told(
    mysql: MysqlServer, schema: str, columns: str
) -> None:
    by = f"PARTITION BY KEY ({columns}) (PARTITION a, PARTITION b)"
    mysql.query(f"CREATE TABLE {schema}.t (id varchar(9) PRIMARY KEY) {by}")
    mysql.query(f"CREATE TABLE {schema}.x (id varchar(9) PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.t VALUES ('a'), ('B'), ('c'), ('é'), ('z')")
    source = MysqlSource(settings_of(mysql))
    source.preflight([f"{schema}.t"], TableOptions())
    for part in "aba":
        mysql.query(f"ALTER TABLE {schema}.t EXCHANGE PARTITION {part} WITH TABLE {schema}.x WITHOUT VALIDATION")
    with pytest.raises(PreflightError, match="partition a has rows that belong to another partition"):
        source.preflight([f"{schema}.t"], TableOptions())


@pytest.mark.parametrize("operation", ["TRUNCATE PARTITION a", "DROP PARTITION a"])
def test_a_partition_that_goes_while_it_is_looked_at_stops_no_preflight(
    mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v int) {PARTITIONED}")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 1), (1500, 1), (2500, 1)")

    def query_late(connection: Connection, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = query(connection, sql, args)
        if sql.startswith("START TRANSACTION") and not gone:
            mysql.query(f"ALTER TABLE {schema}.t {operation}")
            gone.append(operation)
        return found

    gone: list[str] = []
    monkeypatch.setattr(pushed_conditions, "query", query_late)
    MysqlSource(settings_of(mysql)).preflight([f"{schema}.t"], TableOptions())
    assert gone


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    ("kind", "by", "bounds", "values"),
    [
        ("datetime(3)", "RANGE (TO_DAYS(`a%s`))", "TO_DAYS('2020-01-01')", "'0000-00-00', '2019-02-31', '2024-01-01'"),
        ("timestamp", "RANGE (UNIX_TIMESTAMP(`a%s`))", "1577836800", "0, '1970-01-02', '2024-01-01'"),
        ("varchar(9)", "RANGE COLUMNS (`a%s`)", "'m'", "'A', 'ß', 'z ', 'm', 'É'"),
        ("varchar(9) CHARACTER SET latin1", "RANGE COLUMNS (`a%s`)", "'m'", "'A', 'ß', 'z ', 'm', 'É'"),
        ("varbinary(9)", "RANGE COLUMNS (`a%s`)", "'m'", "'', x'00', x'ff'"),
        ("bigint unsigned", "RANGE (`a%s`)", "5", "0, 5, 18446744073709551615"),
        ("year", "RANGE (`a%s`)", "2000", "0, 1901, 2000, 2155"),
        ("date", "RANGE COLUMNS (`a%s`)", "'2020-01-01'", "'0000-00-00', '2019-00-00', '2024-01-01'"),
    ],
)
def test_whole_partitions_of_any_key_are_not_refused(
    mysql: MysqlServer, schema: str, kind: str, by: str, bounds: str, values: str, ranges: bool
) -> None:
    parts = f"(PARTITION low VALUES LESS THAN ({bounds}), PARTITION high VALUES LESS THAN (MAXVALUE))"
    how = f"{by} {parts}" if ranges else "KEY (`a%s`) PARTITIONS 3"
    rows = ", ".join(f"({value}, 1)" for value in values.split(", "))
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES,ANSI_QUOTES', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE {schema}.t (`a%s` {kind}, n int, PRIMARY KEY (`a%s`, n)) PARTITION BY {how}")
        cursor.execute(f"INSERT INTO {schema}.t VALUES {rows}")
        cursor.execute("COMMIT")
    options = TableOptions(unrepresentable="string")
    assert len(MysqlSource(settings_of(mysql)).preflight([f"{schema}.t"], options)) == 1
