"""Schemas must match the log: every column, in order, and a key that really distinguishes rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, session
from airflow_provider_cdc.sources.mysql.tables.schema import check_unchanged, read_tables, resolve
from harness.mysql_server import MysqlServer


@pytest.fixture
def connection(mysql: MysqlServer) -> Iterator[Connection]:
    with session(ConnectionSettings("mysql", mysql.host, mysql.port, "root")) as opened:
        yield opened


def read(connection: Connection, schema: str, definition: str) -> Table:
    query(connection, f"CREATE TABLE {schema}.t ({definition})")
    (table,) = read_tables(connection, [TableName(schema, "t")])
    return table


class TestColumns:
    def test_all_of_them_in_the_order_of_the_log(self, connection: Connection, schema: str) -> None:
        table = read(
            connection,
            schema,
            """c VARCHAR(10) CHARACTER SET latin1 COLLATE latin1_german2_ci NOT NULL,
            hidden INT INVISIBLE,
            v INT AS (hidden + 1) VIRTUAL,
            s INT AS (hidden + 2) STORED INVISIBLE,
            e ENUM('it''s', 'b') NOT NULL,
            z INT(5) ZEROFILL,
            j JSON, b VARBINARY(3)""",
        )
        query(connection, f"ALTER TABLE {schema}.t ADD first_of_all INT FIRST")
        (table,) = read_tables(connection, [table.name])
        assert [column.name for column in table.columns] == ["first_of_all", *"c hidden v s e z j b".split()]
        assert table.column("c").details == {"charset": "latin1", "collation": "latin1_german2_ci"}
        assert not table.column("c").nullable
        assert table.column("hidden").details == {"invisible": True}
        assert table.column("hidden").nullable
        assert table.column("v").details == {"generated": "virtual"}
        assert table.column("s").details == {"generated": "stored", "invisible": True}
        assert table.column("e").type == "enum('it''s','b')"
        assert table.column("z").type == "int(5) unsigned zerofill"
        assert (table.column("j").details, table.column("b").details) == ({}, {})

    def test_a_table_survives_the_manifest(self, connection: Connection, schema: str) -> None:
        table = read(connection, schema, "id INT PRIMARY KEY, c TEXT, v INT AS (id) VIRTUAL INVISIBLE")
        assert decode(Table, encode(table), "") == table


class TestKey:
    @pytest.mark.parametrize(
        ("definition", "index", "key"),
        [
            ("a INT, b INT, PRIMARY KEY (b, a)", "PRIMARY", ("b", "a")),
            ("a INT, b INT NOT NULL, UNIQUE first_one (b), PRIMARY KEY (a)", "PRIMARY", ("a",)),
            ("a INT NOT NULL, b INT NOT NULL, UNIQUE u (b, a)", "u", ("b", "a")),
            # A prefix in a primary key: rows that differ in it differ in the column.
            ("a TEXT NOT NULL, PRIMARY KEY (a(5))", "PRIMARY", ("a",)),
            ("a INT", "", ()),
            ("a INT, UNIQUE (a)", "", ()),
            ("a INT NOT NULL, b INT, UNIQUE (a, b)", "", ()),
            ("a INT NOT NULL, INDEX (a)", "", ()),
            ("a VARCHAR(99) NOT NULL, UNIQUE (a(5))", "", ()),
            ("a INT NOT NULL, UNIQUE ((a + 1))", "", ()),
            ("a INT NOT NULL, b INT NOT NULL, UNIQUE (b, (a + 1))", "", ()),
            ("a INT NOT NULL, UNIQUE u (a) INVISIBLE, PRIMARY KEY (x), x INT", "PRIMARY", ("x",)),
            ("a INT NOT NULL, b INT NOT NULL, UNIQUE u (a), UNIQUE v (b), INDEX w (a, b)", "u", ("a",)),
            ("a INT, v INT AS (a) VIRTUAL NOT NULL, UNIQUE (v)", "", ()),
            ("a INT, s INT AS (a) STORED NOT NULL, UNIQUE u (s)", "u", ("s",)),
        ],
    )
    def test_is_one_that_tells_rows_apart(
        self, definition: str, index: str, key: tuple[str, ...], connection: Connection, schema: str
    ) -> None:
        table = read(connection, schema, definition)
        assert (table.key_index, table.key) == (index, key)

    def test_may_be_invisible_and_generated_by_the_server(self, connection: Connection, schema: str) -> None:
        query(connection, "SET sql_generate_invisible_primary_key = ON")
        table = read(connection, schema, "a INT")
        assert table.key == ("my_row_id",)
        assert table.columns[0].name == "my_row_id"
        assert table.columns[0].details == {"invisible": True}


def test_sizes_are_those_of_now(connection: Connection, mysql: MysqlServer, schema: str) -> None:
    table = read(connection, schema, "id INT PRIMARY KEY, c CHAR(200)")
    assert table.rows == 0
    mysql.query(
        f"INSERT INTO {schema}.t WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 900) "
        "SELECT n, REPEAT('x', 200) FROM c"
    )
    query(connection, f"ANALYZE TABLE {schema}.t")
    (table,) = read_tables(connection, [table.name])
    assert 600 < table.rows < 1200
    assert table.bytes > 100_000


def test_tables_come_in_the_order_asked_for_and_a_missing_one_is_named(connection: Connection, schema: str) -> None:
    for name in ("b", "a", "odd `name`"):
        query(connection, f"CREATE TABLE {schema}.`{name.replace('`', '``')}` (id INT PRIMARY KEY)")
    query(connection, f"CREATE VIEW {schema}.v AS SELECT 1")
    names = [TableName(schema, name) for name in ("b", "odd `name`", "a")]
    assert [table.name for table in read_tables(connection, names)] == names
    assert read_tables(connection, []) == ()
    for missing in ("gone", "v"):
        with pytest.raises(SchemaChanged) as caught:
            read_tables(connection, [*names, TableName(schema, missing)])
        assert caught.value.where == f"{schema}.{missing}"


def test_a_new_unique_index_does_not_change_the_key(connection: Connection, schema: str) -> None:
    """It changes no row, and the log reader accepts it."""
    name = TableName(schema, "t")
    query(connection, f"CREATE TABLE {schema}.t (x INT NOT NULL, y INT NOT NULL, UNIQUE z (y))")
    tables = read_tables(connection, [name])
    query(connection, f"CREATE UNIQUE INDEX a ON {schema}.t (x)")
    assert read_tables(connection, [name])[0].key == ("x",)
    check_unchanged(connection, tables)
    query(connection, f"DROP INDEX z ON {schema}.t")
    with pytest.raises(SchemaChanged, match="its key has changed"):
        check_unchanged(connection, tables)


class TestPatterns:
    @pytest.fixture
    def tables(self, connection: Connection, schema: str) -> str:
        for name in ("orders", "orders_old", "items", "Items", "a_b", "axb"):
            query(connection, f"CREATE TABLE {schema}.{name} (id INT)")
        query(connection, f"CREATE VIEW {schema}.orders_view AS SELECT 1")
        return schema

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("S.orders", ["orders"]),
            ("S.*", ["Items", "a_b", "axb", "items", "orders", "orders_old"]),
            ("S.orders*", ["orders", "orders_old"]),
            ("S.*e*s", ["Items", "items", "orders"]),
            ("S.items", ["items"]),
            ("S.a_b", ["a_b"]),  # _ is no wildcard, and neither is the dot
            ("S.o.ders", []),
            ("S.ORDERS", []),
            ("S.orders_view", []),
            ("S.*view", []),
            ("*.orders_old", ["orders_old"]),
            ("other.*", []),
            ("mysql.user", []),
            ("mysql.*", []),
            ("orders", []),
            ("", []),
        ],
    )
    def test_match_names_of_base_tables(
        self, pattern: str, found: list[str], connection: Connection, tables: str
    ) -> None:
        names, problems = resolve(connection, [pattern.replace("S", tables)])
        assert [name.name for name in names if name.schema == tables] == found
        assert len(problems) == (0 if found else 1)
        assert all(problem.hint for problem in problems)

    def test_never_match_system_schemas(self, connection: Connection, tables: str) -> None:
        names, problems = resolve(connection, ["*.*", "*.user", "*s.*"])
        assert {name.schema for name in names} & {"mysql", "sys", "performance_schema", "information_schema"} == set()
        assert TableName(tables, "orders") in names
        assert [problem.where for problem in problems if problem.where == "*.user"] == ["*.user"]

    def test_name_each_table_once(self, connection: Connection, tables: str) -> None:
        names, problems = resolve(connection, [f"{tables}.o*", f"{tables}.orders", f"{tables}.o*"])
        assert names == [TableName(tables, "orders"), TableName(tables, "orders_old")]
        assert not problems

    @pytest.mark.parametrize("name", ["slash/ed", "dot.ted"])
    def test_refuse_names_that_make_no_valid_path(self, name: str, connection: Connection, tables: str) -> None:
        schema = tables if "/" in name else f"{tables}.d"
        query(connection, f"CREATE DATABASE IF NOT EXISTS `{schema}`")
        try:
            query(connection, f"CREATE TABLE `{schema}`.`{name}` (id INT)")
            names, (problem,) = resolve(connection, ["*.orders", f"{tables}*.*ed"])
            assert problem.where == f"{schema}.{name}"
            assert TableName(schema, name) not in names
        finally:
            query(connection, f"DROP TABLE `{schema}`.`{name}`")
            query(connection, f"DROP DATABASE IF EXISTS `{tables}.d`")

    def test_say_what_is_wrong_with_each(self, connection: Connection, tables: str) -> None:
        _, problems = resolve(connection, [f"{tables}.orders_view", "mysql.user", f"{tables}.no*", f"{tables}.no"])
        view, system, nothing, missing = problems
        assert "view" in view.what
        assert "system schema" in system.what
        assert "matches no table" in nothing.what
        assert missing.hint.endswith(f"GRANT SELECT ON `{tables}`.`no` TO `root`@`localhost`")
