"""Tables without REPLICA IDENTITY FULL: how they are read, how rows are found by key, and what stops the view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions, TableOptions
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import PreflightError, SchemaChanged
from airflow_provider_cdc.sources.api.source import KeyReader
from airflow_provider_cdc.sources.log.delta import key_table
from airflow_provider_cdc.sources.planning.point import late_problems
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.chunking.key_ranges import ONE_BY_ONE, KeyLookup
from airflow_provider_cdc.sources.postgres.decode.rows import open_rows
from airflow_provider_cdc.sources.postgres.server.session import session
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.catalog_reading import followed, read_tables
from tests.sources.postgres.log.messages import tuple_data
from tests.sources.postgres.log.reading import Run
from tests.sources.postgres.log.reading import settings as settings_of


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresSource:
    return PostgresSource(settings_of(postgres, database))


def table_of(source: PostgresSource, name: str) -> Table:
    with session(source.settings) as connection:
        return read_tables(connection, [TableName("public", name)])[0]


def found(source: PostgresSource, table: Table, *keys: tuple[str, ...]) -> list[tuple[Any, ...]]:
    images = pa.array([tuple_data(key) for key in keys], pa.binary())
    assert key_table(table).key == table.key
    with source.reader(table, "again", LockPolicy()) as opened:
        batches = cast(KeyReader, opened).find(images)
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


VERSIONS = sorted({one.major for one in installations()})

KEYS: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {
    "int": (("int",), [("5",), ("7",)]),
    "wide": (("int", "text"), [("5", "it's"), ("7", "\\x'; --")]),
    "padded": (("character(8)",), [("a       ",), ("b       ",)]),
    "bytes": (("bytea",), [("\\x00ff",), ("\\x",)]),
    "moments": (("timestamptz", "date"), [("2026-03-29 01:30:00.000001+00", "0001-01-01")]),
    "amounts": (("numeric(30,6)",), [("1.000000",), ("-0.500000",)]),
    "any amounts": (("numeric",), [("1.10",), ("NaN",)]),
    "floats": (("double precision",), [("0.30000000000000004",), ("-Infinity",), ("NaN",)]),
    "spans": (("interval",), [("P1DT2H",), ("P-1Y",)]),
    "tokens": (("uuid",), [("00000000-0000-4000-8000-000000000001",)]),
    "lists": (("int[]",), [("{1,2,NULL}",), ("[2:3]={1,2}",), ("{}",)]),
    "letters": (('"char"',), [("a",), ("\\377",), ("",)]),
    "networks": (("inet", "cidr"), [("10.0.0.1/8", "10.0.0.0/8")]),
    "bits": (("bit(9)", "varbit"), [("101010101", "1")]),
    "ranges": (("int4range",), [("[1,3)",), ("empty",)]),
    "documents": (("jsonb",), [('{"a": [1, 2.50]}',)]),
    "moods": (("mood",), [("sad",), ("it's",)]),
    "domains": (("positive",), [("5",)]),
    "domains over anything": (
        ("feeling", "price", "couple", "lots", "padded"),
        [("sad", "1.100", "(1,x)", "{1,2}", "a  "), ("it's", "-1.000", "(,)", "{}", "   ")],
    ),
    "collated": (('name COLLATE "POSIX"',), [("a",), ("A",)]),
    "odd names": (("int", '"Odd Type"'), [("1", "x")]),
    "rows": (("pair",), [("(1,x)",), ("(,)",), ('(2,"it\'s, ""so"" \\\\ (")',)]),
    "many rows": (("pair[]",), [('{"(1,x)","(,\\"a b\\")"}',), ("{}",)]),
    "times": (("timetz", "macaddr"), [("24:00:00-15:59", "08:00:2b:01:02:03")]),
    "periods": (("tstzrange",), [('["2026-03-29 01:30:00+00","2026-03-29 02:00:00+00")',), ("(,)",)]),
    "several ranges": (("int4multirange",), [("{[1,3),[5,7)}",), ("{}",)]),
    "words": (("tsvector", "name"), [("'a':1A 'it''s':2", "x y")]),
    "places": (("pg_lsn", "xid8", "oid"), [("FFFFFFFF/FFFFFFFF", "18446744073709551615", "4294967295")]),
}


@pytest.mark.parametrize("name", KEYS)
def test_rows_are_found_by_keys_of_every_kind(run: Run, source: PostgresSource, name: str) -> None:
    types, keys = KEYS[name]
    run(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s')",
        "CREATE DOMAIN positive AS int",
        "CREATE TYPE \"Odd Type\" AS ENUM ('x')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN feeling AS mood",
        "CREATE DOMAIN price AS numeric(12,3)",
        "CREATE DOMAIN couple AS pair",
        "CREATE DOMAIN lots AS int[]",
        "CREATE DOMAIN padded AS char(3)",
    )
    columns = ", ".join(f'"k {place}" {kind}' for place, kind in enumerate(types))
    names = ", ".join(f'"k {place}"' for place in range(len(types)))
    run(f"CREATE TABLE a ({columns}, t int, w text, PRIMARY KEY ({names}))")
    for number, one in enumerate(keys):
        quoted = ", ".join("'" + text.replace("'", "''") + f"'::{kind}" for text, kind in zip(one, types, strict=True))
        run(f"INSERT INTO a VALUES ({quoted}, {number}, 'w')")
    run("ALTER DOMAIN positive ADD CHECK (VALUE > 100) NOT VALID")
    table = table_of(source, "a")
    for number, one in enumerate(keys):
        assert [row[-2] for row in found(source, table, one)] == [number]
    assert sorted(row[-2] for row in found(source, table, *keys)) == list(range(len(keys)))


def test_keys_without_overlaps_are_searched_by_equality(postgres_factory: PostgresFactory) -> None:
    """Their index is not a B-tree, and a search for overlaps would never find an empty range."""
    if VERSIONS[-1] < 18:
        pytest.skip("no PostgreSQL here has keys WITHOUT OVERLAPS")
    server = postgres_factory(None, VERSIONS[-1])
    server.query(
        """
        CREATE TABLE a (n int4range, during daterange, v int, PRIMARY KEY (n, during WITHOUT OVERLAPS));
        INSERT INTO a VALUES ('empty', '[2026-01-01,2026-02-01)', 1), ('[1,9)', '[2026-01-01,2026-02-01)', 2),
            ('[2,9)', '[2026-01-01,2026-02-01)', 3), ('[1,9)', '[2026-02-01,2026-03-01)', 4)
        """
    )
    source = PostgresSource(settings_of(server, "postgres"))
    table = table_of(source, "a")
    for key, v in {"empty": 1, "[1,9)": 2, "[2,9)": 3}.items():
        assert [row[2] for row in found(source, table, (key, "[2026-01-01,2026-02-01)"))] == [v]
    assert found(source, table, ("[1,2)", "[2026-01-01,2026-02-01)"), ("[1,9)", "[2026-01-01,2026-03-01)")) == []


def test_equality_wider_than_bytes_finds_a_row_once(run: Run, source: PostgresSource) -> None:
    run("CREATE TABLE a (n numeric PRIMARY KEY)", "INSERT INTO a VALUES (1.0), (2)")
    table = table_of(source, "a")
    assert found(source, table, ("1.00",), ("1.0",), ("1",)) == [("1.0",)]


def _ignores_case(server: PostgresServer) -> bool:
    try:
        server.query("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def test_keys_that_a_collation_takes_for_equal_find_a_row_once(postgres_factory: PostgresFactory) -> None:
    """Under a collation of the index's own, too, and through that index."""
    server = next((own for major in VERSIONS if _ignores_case(own := postgres_factory(None, major))), None)
    if server is None:
        pytest.skip("no PostgreSQL here is built with ICU")
    with server.connect() as connection:
        for statement in (
            "CREATE TABLE a (name text COLLATE any_case PRIMARY KEY)",
            "CREATE TABLE b (name text NOT NULL)",
            "CREATE UNIQUE INDEX b_name ON b (name COLLATE any_case)",
            "INSERT INTO a VALUES ('Abc'), ('d')",
            "INSERT INTO b VALUES ('Abc'), ('d')",
        ):
            connection.execute(statement)
    source = PostgresSource(settings_of(server, "postgres"))
    for name in ("a", "b"):
        assert found(source, table_of(source, name), ("abc",), ("ABC",), ("Abc",)) == [("Abc",)]


def test_an_index_with_an_equality_of_its_own(run: Run, source: PostgresSource) -> None:
    """As in extensions: the operator is not in the session's search path, and equates more than equal bytes."""
    less = {"1": "< 0", "2": "<= 0", "3": "= 0", "4": ">= 0", "5": "> 0"}
    run(
        "CREATE SCHEMA other",
        "CREATE FUNCTION other.order(text, text) RETURNS int LANGUAGE sql IMMUTABLE "
        "AS 'SELECT bttextcmp(lower($1), lower($2))'",
        *(
            f"CREATE FUNCTION other.is_{number}(text, text) RETURNS bool LANGUAGE sql IMMUTABLE "
            f"AS 'SELECT other.order($1, $2) {sign}'; "
            f"CREATE OPERATOR other.=={'=' * int(number)} "
            f"(LEFTARG = text, RIGHTARG = text, FUNCTION = other.is_{number})"
            for number, sign in less.items()
        ),
        "CREATE OPERATOR CLASS other.any_case FOR TYPE text USING btree AS FUNCTION 1 other.order(text, text), "
        + ", ".join(f"OPERATOR {number} other.=={'=' * int(number)}" for number in less),
        "CREATE TABLE a (name text NOT NULL, n int)",
        "CREATE UNIQUE INDEX named ON a (name other.any_case)",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX named",
        "INSERT INTO a VALUES ('Abc', 5), ('d', 6)",
    )
    assert found(source, table_of(source, "a"), ("ABC",), ("Abc",)) == [("Abc", 5)]


def test_each_key_is_looked_up_in_the_index_whatever_the_server_believes_of_the_table(
    run: Run, source: PostgresSource, postgres: PostgresServer
) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off)",
        "ANALYZE a",
        "INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i",
        # Otherwise it would not count what it did before its process ends, a moment after its connection.
        "SELECT pg_stat_force_next_flush()",
    )
    table = table_of(source, "a")
    count = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'a'"
    ((seq, idx),) = postgres.query(count, database=source.settings.database)
    assert len(found(source, table, *((str(number),) for number in range(1, 1001)))) == 1000
    soon(
        lambda: postgres.query(f"SELECT idx_scan > {idx} FROM ({count}) c", database=source.settings.database),
        [(True,)],
    )
    ((seq_now, _),) = postgres.query(count, database=source.settings.database)
    assert seq_now == seq


IDENTITIES = {
    "CREATE TABLE a (id int PRIMARY KEY)": True,
    "CREATE TABLE a (id int)": False,
    "CREATE TABLE a (id int NOT NULL UNIQUE)": False,
    "CREATE TABLE a (id int NOT NULL UNIQUE); ALTER TABLE a REPLICA IDENTITY FULL": True,
    "CREATE TABLE a (id int); ALTER TABLE a REPLICA IDENTITY FULL": False,
    "CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY NOTHING": False,
    "CREATE TABLE a (id int PRIMARY KEY DEFERRABLE)": False,
    "CREATE TABLE a (id int NOT NULL UNIQUE); ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_key": True,
    "CREATE TABLE a (id int PRIMARY KEY, n int NOT NULL UNIQUE); ALTER TABLE a REPLICA IDENTITY USING INDEX a_n_key; "
    "ALTER TABLE a DROP CONSTRAINT a_n_key": False,
    "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id); "
    "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (9)": True,
    "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id); "
    "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (9); ALTER TABLE a1 REPLICA IDENTITY NOTHING": False,
    "CREATE TABLE a (id int, n int) PARTITION BY RANGE (id); "
    "CREATE TABLE a1 PARTITION OF a (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9)": False,
    "CREATE TABLE a (id int NOT NULL, n int NOT NULL, UNIQUE (id)) PARTITION BY RANGE (id); "
    "CREATE TABLE a1 PARTITION OF a (PRIMARY KEY (id, n)) FOR VALUES FROM (0) TO (9)": True,
}


@pytest.mark.parametrize(("statements", "tells"), IDENTITIES.items())
def test_the_log_is_followed_where_it_tells_the_key_of_every_changed_row(
    run: Run, source: PostgresSource, statements: str, tells: bool
) -> None:
    run(statements)
    with session(source.settings) as connection:
        assert followed(connection, [table_of(source, "a")]) == [tells]


def test_a_column_that_the_log_lacks_sends_full_tables_the_same_way(run: Run, source: PostgresSource) -> None:
    for name, more in (("a", ""), ("b", ", twice int GENERATED ALWAYS AS (2 * id) STORED")):
        run(f"CREATE TABLE {name} (id int PRIMARY KEY{more})", f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    plans = source.preflight(["public.*"])
    with session(source.settings) as connection:
        since_18 = connection.info.server_version >= 180_000
    assert {plan.consistency for plan in plans} == {"watermark" if since_18 else "again"}
    assert since_18 or all("old rows of public.b (twice" in plan.reason for plan in plans)


def test_one_table_without_old_rows_in_the_log_sends_all_the_same_way(run: Run, source: PostgresSource) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY FULL",
        "CREATE TABLE b (id int); ALTER TABLE b REPLICA IDENTITY FULL",
    )
    ways = {plan.table.name: (plan.consistency, plan.at_upper) for plan in source.preflight(["public.*"])}
    assert ways == {"a": ("watermark", False), "b": ("exported", False)}
    run("CREATE TABLE c (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id + 1) STORED)")
    plans = source.preflight(["public.*"])
    ways = {plan.table.name: (plan.consistency, plan.at_upper) for plan in plans}
    assert ways == {"a": ("again", True), "b": ("exported", True), "c": ("again", True)}
    assert all("old rows of public.c (its replica identity is not FULL)" in plan.reason for plan in plans)
    asked = source.preflight(["public.a"], TableOptions("again"))
    assert [(plan.consistency, plan.at_upper) for plan in asked] == [("again", True)]
    with pytest.raises(PreflightError, match="REPLICA IDENTITY FULL"):
        source.preflight(["public.*"], TableOptions("watermark"))


@pytest.mark.parametrize(
    "options",
    [StepOptions(as_of="2026-01-01T00:00:00Z"), StepOptions(keep_slot=True)],
)
def test_what_rests_on_the_initial_position_is_refused(run: Run, source: PostgresSource, options: StepOptions) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "ALTER TABLE b REPLICA IDENTITY FULL",
    )
    (problem,) = late_problems(source.preflight(["public.a"]), options)
    assert "exact where its reads end" in problem.what
    assert "REPLICA IDENTITY FULL" in problem.hint
    assert late_problems(source.preflight(["public.b"]), options) == []
    # The log of the standing slot still shows which rows the next night must read again.
    assert late_problems(source.preflight(["public.a"]), StepOptions(standing_slot="past")) == []


MOVES = {
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (15)": "has rows in the",
    "CREATE TABLE p2 (id int NOT NULL, v text); INSERT INTO p2 VALUES (15); "
    "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)": "has rows in the",
    "ALTER TABLE p DETACH PARTITION p1": "attached or detached",
    "ALTER TABLE p DETACH PARTITION p1; ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)": "attached or",
    "ALTER TABLE p ADD COLUMN more int": "other columns",
    "ALTER TABLE p DROP COLUMN v; ALTER TABLE p ADD COLUMN v text": "other columns",
    "ALTER TABLE p RENAME TO q; CREATE TABLE p (LIKE q)": "another table has its name in the later snapshot",
    "DROP TABLE p": "another table has its name in the later snapshot",
}


@pytest.mark.parametrize(("change", "why"), MOVES.items())
def test_a_table_that_is_another_in_the_view_stops_the_run(
    run: Run, source: PostgresSource, change: str, why: str
) -> None:
    run(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    table = table_of(source, "p")
    run("ALTER TABLE p ALTER v SET STATISTICS 7", "ALTER TABLE p1 SET (fillfactor = 50)")
    with source.share_reads(LockPolicy()) as shared:
        assert shared.view is not None
        assert shared.bound_view([table]).upper == shared.view.upper
        run(change)
        # It is what the view shows that counts, and not what came after.
        assert shared.bound_view([table]).upper == shared.view.upper
    with source.share_reads(LockPolicy()) as shared, pytest.raises(SchemaChanged, match=why):
        shared.bound_view([table])


def test_a_partition_that_is_empty_in_the_view_stops_nothing(run: Run, source: PostgresSource) -> None:
    """Its rows come after the position. A TRUNCATE since the view makes it look as empty to the view as it is now."""
    run(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    table = table_of(source, "p")
    run("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
    run("CREATE TABLE p3 PARTITION OF p2 FOR VALUES FROM (10) TO (15)")
    with source.share_reads(LockPolicy()) as shared:
        assert shared.view is not None
        run("INSERT INTO p VALUES (12)", "CREATE TABLE p4 PARTITION OF p2 FOR VALUES FROM (15) TO (20)")
        assert shared.bound_view([table]).upper == shared.view.upper
    with source.share_reads(LockPolicy()) as shared:
        run("TRUNCATE p3")
        with pytest.raises(SchemaChanged, match="truncated"):
            shared.bound_view([table])


def test_a_virtual_column_beside_full_makes_the_application_fail_nowhere(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory(version=18)
    source = PostgresSource(settings_of(server, "postgres"))
    columns = "id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) VIRTUAL"
    for name, identity in (("whole", "FULL"), ("keyed", "DEFAULT")):
        server.query(f"CREATE TABLE {name} ({columns})")
        server.query(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
        server.query(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    plans = source.preflight(["public.whole", "public.keyed"])
    # What the publication had of the one would have the server refuse its changes.
    assert {str(plan.table): plan.consistency for plan in plans} == {
        "public.whole": "exported",
        "public.keyed": "again",
    }
    source.record_initial(plans, LockPolicy(), "20260101T000000Z-0a1b2c3d")
    for name in ("whole", "keyed"):
        server.query(f"UPDATE {name} SET v = 7 WHERE id = 1")
        server.query(f"DELETE FROM {name} WHERE id = 2")
    source.release("20260101T000000Z-0a1b2c3d")


def test_rows_are_found_whole_also_where_the_index_has_all_that_is_asked_for(run: Run, source: PostgresSource) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, large text)", "INSERT INTO a SELECT n, 'x' FROM generate_series(1, 2000) n"
    )
    run("VACUUM ANALYZE a")
    table = replace(table_of(source, "a"), selection=Selection(None, ("id",)))
    assert found(source, table, ("7",), ("9000",)) == [(7,)]
    with open_rows(source.settings, table.as_read) as rows:
        looked = KeyLookup(rows.ask, table).source("public.a", pa.array([tuple_data(("7",))], pa.binary()))
        plans = {}
        for prepared in ("SELECT 'as it is'", ONE_BY_ONE):
            rows.run("BEGIN")
            rows.ask(prepared)
            plans[prepared] = str(rows.ask(f"EXPLAIN SELECT id FROM {looked}"))
            rows.run("COMMIT")
    assert "Index Only Scan" not in plans[ONE_BY_ONE]
    assert "Index Scan using a_pkey" in plans[ONE_BY_ONE]


def test_no_large_column_is_read_again_that_nobody_asked_for(run: Run, postgres: PostgresServer, database: str) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, note text, large text)",
        "ALTER TABLE a ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO a SELECT n, 'n' || n, repeat('x', 40000) FROM generate_series(1, 50) n",
    )
    with Proxy(postgres.port) as proxy:
        source = PostgresSource(replace(settings_of(postgres, database), host=proxy.host, port=proxy.port))
        whole = table_of(source, "a")
        came = []
        for columns in ((), ("note",)):
            table = replace(whole, selection=Selection(None, columns))
            before = proxy.answered
            rows = found(source, table, *((str(n),) for n in range(1, 51)))
            assert [row[:2] for row in rows] == [(n, f"n{n}") for n in range(1, 51)]
            came.append(proxy.answered - before)
    assert came[0] > 50 * 40_000
    assert came[1] < 20_000
