"""Bytes that are not valid in their column's character set: every policy gives the same copy, whichever rows change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables.published import published_columns
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import PreflightError, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes.filter_images import copied, copied_images, decode_published
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, naming_key
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.decode.images import decode_images
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.tables.charsets import CHARSETS, has_gaps
from harness.mysql_server import MysqlServer
from tests.sources.mysql.decode.reading import decode, select, split
from tests.sources.mysql.decode.row_images import describe, logged, settings
from tests.sources.mysql.values import GAPS


@pytest.fixture(scope="module")
def gaps(mysql: MysqlServer) -> Iterator[tuple[Table, list[bytes]]]:
    """A table with three columns of each set, and the images of its rows."""
    schema = "gaps"
    columns = [
        f"{kind}_{charset} {kind}{size} CHARACTER SET {charset} NOT NULL"
        for charset in GAPS
        for kind, size in (("char", "(9)"), ("varchar", "(9)"), ("text", ""))
    ]
    mysql.query(f"CREATE DATABASE {schema}")
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {', '.join(columns)}) CHARACTER SET utf8mb4")
    rows = [
        [f"x'{code}'" for code in GAPS.values()],
        [f"CONCAT('a?', CONVERT(x'{code}' USING {charset}), 'b')" for charset, code in GAPS.items()],
        ["'a?'" for _ in GAPS],
        ["''" for _ in GAPS],
    ]
    values = ", ".join(f"({id}, {', '.join(v for value in row for v in [value] * 3)})" for id, row in enumerate(rows))
    events = logged(mysql, schema, [f"INSERT INTO t VALUES {values}"])
    table = describe(mysql, schema, "t")
    yield table, [image for event in events for image in split(table, event.body)]
    mysql.query(f"DROP DATABASE {schema}")


def test_the_table_of_gaps_is_whole() -> None:
    assert {charset for charset in CHARSETS if has_gaps(charset)} == set(GAPS)


@pytest.mark.parametrize("policy", ["null", "string"])
def test_bytes_that_are_not_text_are_what_the_policy_says(
    mysql: MysqlServer, gaps: tuple[Table, list[bytes]], policy: str
) -> None:
    table, images = replace(gaps[0], options=TableOptions(unrepresentable=policy)), gaps[1]
    selected = select(mysql, table)
    decoded = decode(table, images)
    assert decoded.equals(selected)
    assert all(field.nullable == (policy == "null") for field in selected.schema if field.name != "id")
    stored = mysql.query(f"SELECT {', '.join(f'HEX({name})' for name in selected.column_names[1:])} FROM {table.name}")
    for name, odd, mixed, *plain in zip(selected.column_names[1:], *stored, strict=True):
        shown = [f"0x{odd}", f"0x{mixed}"] if policy == "string" else [None, None]
        assert selected[name].to_pylist() == [*shown, "a?", ""], name
        assert len(plain) == 2


def test_bytes_that_are_not_text_stop_only_who_reads_them(mysql: MysqlServer, gaps: tuple[Table, list[bytes]]) -> None:
    table, images = gaps
    for column in table.columns[1:]:
        charset = column.name.partition("_")[2]
        odd: list[OddValue] = []
        rows = decode_images(table, pa.array(images, pa.binary()), names=["id", column.name], odd=odd)
        assert rows.schema.names == ["id", column.name]
        assert rows[1].to_pylist() == ["", "", "a?", ""]
        assert [(value.row, value.column) for value in odd] == [(0, column.name), (1, column.name)]
        with pytest.raises(ValueNotRepresentable) as caught:
            decode_images(table, pa.array(images, pa.binary()), names=[column.name])
        assert caught.value.where == f"{table.name}.{column.name}"
        assert f"x'{GAPS[charset]}'" in caught.value.message
        assert f"of {charset}" in caught.value.message
        assert caught.value.message.endswith("id = 0")
        assert "string" in caught.value.hint
    assert decode_images(table, pa.array(images, pa.binary()), names=["id"]).to_pydict() == {"id": [0, 1, 2, 3]}
    with session(settings(mysql), reading=True) as connection, StatementReader(connection, table) as reader:
        (batch,) = reader.read("", ())
        assert len(reader.odd) == 2 * 3 * len(GAPS)
        assert batch.equals(decode_images(table, pa.array(images, pa.binary()), odd=[]))


class TestBytesThatAreNoText:
    """One row of six has bytes in gbk that are no character: a copy is the same whether or not that row is touched."""

    ROWS = tuple((id, "odd" if id == 5 else "ok", None if id == 5 else "fine", id) for id in range(1, 7))
    COPIES: tuple[tuple[str, tuple[str, ...], list[int]], ...] = (
        ("", ("n",), [1, 2, 3, 4, 5, 6]),
        ("", ("s",), [1, 2, 3, 4, 5, 6]),
        ("id <> 5", (), [1, 2, 3, 4, 6]),
        ("s = 'ok'", (), [1, 2, 3, 4, 6]),
        ("s <> 'ok'", (), [5]),
        ("s <> 'ok'", ("n",), [5]),
        ("g = 'fine'", (), [1, 2, 3, 4, 6]),
        ("g <> 'fine' OR g = '0xA6D9' OR g LIKE '0x%' OR g = '' OR g = '?'", (), []),
        ("NOT g IN ('', '0xA6D9')", ("n",), [1, 2, 3, 4, 6]),
        ("g IS NULL", ("n",), [5]),
        ("g IS NULL", (), [5]),
    )

    def fill(self, server: MysqlServer, schema: str, key: str = "PRIMARY KEY (id)") -> Table:
        server.query(
            f"CREATE TABLE {schema}.t (id int NOT NULL, s varchar(10), g varchar(10) CHARACTER SET gbk, n int, {key})"
        )
        rows = [f"({id}, '{s}', {repr(g) if g else '0xA6D9'}, {n})" for id, s, g, n in self.ROWS]
        with server.connect(database=schema) as connection:
            connection.query("SET sql_mode = ''")
            connection.query(f"INSERT INTO t VALUES {', '.join(rows)}")
        return describe(server, schema, "t")

    def copy(
        self, source: MysqlSource, reader: StatementReader, table: Table, before: bytes
    ) -> list[dict[str, object]]:
        """The rows of a copy, by its steps: what is read, but for row 5 if it is touched, and what is put back of it.

        :param before: what row 5 was; empty: it is not touched.
        """
        rows = []
        for batch in reader.read("", ()):
            found, left = copied(table, batch, reader.odd)
            surviving = [value for value in left if not (before and batch["id"][value.row].as_py() == 5)]
            if surviving:
                raise naming_key(table, batch, left, surviving[0])
            chosen = batch if found is None else batch.filter(found)
            rows += [row for row in published_columns(table, chosen).to_pylist() if not (before and row["id"] == 5)]
        images = copied_images(source, table, pa.array([before] if before else [], pa.binary())).drop_null()
        return sorted(rows + decode_published(source, table, images).to_pylist(), key=lambda row: row["id"])

    @pytest.mark.parametrize("policy", ["error", "null", "string"])
    def test_a_part_is_the_same_whichever_rows_are_touched(self, mysql: MysqlServer, schema: str, policy: str) -> None:
        whole = replace(self.fill(mysql, schema), options=TableOptions(unrepresentable=policy))
        source = MysqlSource(settings(mysql))
        (event,) = logged(mysql, schema, ["UPDATE t SET n = n + 1 WHERE id = 5"])
        mysql.query(f"UPDATE {schema}.t SET n = n - 1 WHERE id = 5")
        for where, columns, ids in (*self.COPIES, ("", (), [1, 2, 3, 4, 5, 6])):
            table = replace(whole, selection=Selection(parse(where) if where else None, columns))
            shown = {"null": None, "string": "0xA6D9"}.get(policy)
            names = [name for name in ("id", "s", "g", "n") if name == "id" or not columns or name in columns]
            every = [dict(zip(("id", "s", "g", "n"), row, strict=True)) for row in self.ROWS if row[0] in ids]
            expected = [{name: row[name] or shown for name in names} for row in every]
            stops = policy == "error" and "g" in names and 5 in ids
            for before in (b"", split(table, event.body)[0]):
                with (
                    session(settings(mysql), reading=True) as connection,
                    StatementReader(connection, table.as_read) as reader,
                ):
                    if not stops:
                        assert self.copy(source, reader, table, before) == expected, (where, columns, before)
                        continue
                    with pytest.raises(ValueNotRepresentable) as caught:
                        self.copy(source, reader, table, before)
                assert caught.value.where == f"{schema}.t.g"
                assert "x'a6d9'" in caught.value.message
                assert caught.value.message.endswith("gbk; the row is the one where id = 5")

    def test_a_condition_may_leave_out_any_number_of_them(self, mysql: MysqlServer, schema: str) -> None:
        whole = self.fill(mysql, schema)
        with mysql.connect(database=schema) as connection:
            connection.query("SET sql_mode = '', cte_max_recursion_depth = 2000")
            connection.query(
                "INSERT INTO t WITH RECURSIVE r AS (SELECT 10 i UNION ALL SELECT i + 1 FROM r WHERE i < 1100) "
                "SELECT i, 'odd', 0xA6D9, i FROM r"
            )
        table = replace(whole, selection=Selection(parse("s = 'ok'")))
        with session(settings(mysql), reading=True) as connection:
            with StatementReader(connection, table) as reader:
                (batch,) = reader.read("", ())
                found, left = copied(table, batch, reader.odd)
                assert found is not None
                assert (found.true_count, left) == (5, [])
            with StatementReader(connection, whole) as reader, pytest.raises(ValueNotRepresentable, match="id = 5"):
                list(reader.read("", ()))

    @pytest.mark.parametrize("policy", ["null", "string"])
    @pytest.mark.parametrize("key", ["PRIMARY KEY (id, g)", "INDEX (id)"], ids=["key", "keyless"])
    def test_where_they_tell_rows_apart_they_stop_the_run(
        self, mysql: MysqlServer, schema: str, key: str, policy: str
    ) -> None:
        self.fill(mysql, schema, key.replace("(id, g)", "(id)"))
        if "g" in key:
            mysql.query(f"DELETE FROM {schema}.t WHERE id = 5")
            with mysql.connect(database=schema) as connection:
                connection.query("ALTER TABLE t MODIFY g varchar(10) CHARACTER SET gbk NOT NULL, DROP PRIMARY KEY")
                connection.query("ALTER TABLE t ADD PRIMARY KEY (id, g)")
                connection.query("SET sql_mode = ''")
                connection.query("INSERT INTO t VALUES (5, 'odd', 0xA6D9, 5)")
        table = replace(describe(mysql, schema, "t"), options=TableOptions(unrepresentable=policy))
        for part in (table, replace(table, selection=Selection(None, ("g", "id")))):
            with pytest.raises(ValueNotRepresentable, match=r"t\.g: .*x'a6d9'.* of gbk") as caught:
                select(mysql, part.as_read)
            assert ("id = 5" in caught.value.message) == bool(table.key)
        (event,) = logged(mysql, schema, ["UPDATE t SET n = n + 1 WHERE id = 5"])
        (before, _) = split(table, event.body)
        with pytest.raises(ValueNotRepresentable, match=r"t\.g: .*x'a6d9'.* of gbk"):
            decode(table, [before])

    def test_preflight_tells_of_them(self, mysql: MysqlServer, schema: str) -> None:
        columns = ", ".join(f"c_{charset} varchar(10) CHARACTER SET {charset}" for charset in GAPS)
        mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {columns}, d date)")
        source = MysqlSource(settings(mysql))
        with mysql.connect(database=schema) as connection:
            connection.query("SET sql_mode = ''")
            connection.query(f"INSERT INTO t VALUES (1, {', '.join(['?'] * len(GAPS))}, NULL)".replace("?", "'a?b'"))
            plans = source.preflight([f"{schema}.t"], TableOptions())
            assert source.sample(plans) == []
            connection.query(f"INSERT INTO t VALUES (2, {', '.join(f'0x{code}' for code in GAPS.values())}, NULL)")
        problems = source.sample(plans)
        assert {problem.where.rpartition("_")[2] for problem in problems} == set(GAPS)
        assert {problem.what for problem in problems} == {
            "no Arrow type holds the column's value in 1 of the 2 rows sampled"
        }
        assert all("`string` or `null`" in problem.hint for problem in problems)
        assert source.sample([replace(plan, unrepresentable="string") for plan in plans]) == []
        mysql.query(f"ALTER TABLE {schema}.t DROP PRIMARY KEY")
        keyless = source.sample([replace(plan, unrepresentable="string") for plan in plans])
        assert len(keyless) == len(GAPS)
        assert not any("unrepresentable" in problem.hint for problem in keyless)

    def test_a_label_that_is_no_text_is_refused(self, mysql: MysqlServer, schema: str) -> None:
        for kind in ("enum", "set"):
            for code in ("gbk 0xA6D9", "tis620 0xDB"):
                charset, code = code.split()
                mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, e {kind}({code}) CHARACTER SET {charset})")
                with pytest.raises(PreflightError, match=r"the server shows as '\?'"):
                    MysqlSource(settings(mysql)).preflight([f"{schema}.t"], TableOptions())
                mysql.query(f"DROP TABLE {schema}.t")
