"""Code of database users that the server runs in the sessions of a run: it works if possible, and else is named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.api.source import KeyReader
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.catalog import users_code
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute, planned_under, set_path, unplannable
from airflow_provider_cdc.sources.postgres.chunking.key_ranges import KeyLookup
from airflow_provider_cdc.sources.postgres.decode import rows
from airflow_provider_cdc.sources.postgres.server.session import query, session, value
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.messages import tuple_data
from tests.sources.postgres.log.reading import settings as settings_of

RUN_ID = "20260101T000000Z-0a1b2c3d"
LOCK = LockPolicy(wait_seconds=5, tries=1)
# A function that calls another one by its bare name: planning a table puts its body into the index's expression.
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, x text); ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'É'), (2, 'e'), (3, NULL);
CREATE FUNCTION fold(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT lower($1) $$;
CREATE FUNCTION norm(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT fold($1) $$
"""
NORM = "CREATE OR REPLACE FUNCTION {0}norm(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT {1} $$"
EXPRESSIONS = {
    "index i": "CREATE INDEX i ON t (norm(x))",
    "index j": "CREATE INDEX j ON t (id) WHERE norm(x) <> ''",
    "statistics public.s": "CREATE STATISTICS s ON (norm(x)), id FROM t",
}
NEWEST = max(one.major for one in installations())
AUDIT = """
CREATE TABLE ddl_audit (tag text);
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO ddl_audit VALUES (concat(tg_event, ' ', tg_tag)); END $$
"""


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> Iterator[PostgresSource]:
    yield PostgresSource(settings_of(postgres, database))
    # Event triggers would refuse that, too.
    for (name,) in postgres.query("SELECT evtname FROM pg_event_trigger", database=database):
        postgres.query(f'DROP EVENT TRIGGER "{name}"', database=database)
    PostgresSource(settings_of(postgres, database)).release(RUN_ID)


def run(server: PostgresServer, source: PostgresSource, *statements: str) -> None:
    with server.connect(database=source.settings.database) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def problems_of(source: PostgresSource, *tables: str) -> tuple[Problem, ...]:
    with pytest.raises(PreflightError) as refused:
        source.preflight(tables or ["public.*"])
    return refused.value.problems


def record(source: PostgresSource) -> InitialPoint:
    return source.record_initial(source.preflight(["public.t"]), LOCK, RUN_ID)


def copied(
    source: PostgresSource, point: InitialPoint, consistency: str = "watermark", chunk_rows: int = 100
) -> list[tuple[Any, ...]]:
    """The rows of the run's only table, chunk by chunk, as the snapshot step reads them."""
    (table,) = point.tables
    source = source.of_run(point.identity, point.position)
    found: list[tuple[Any, ...]] = []
    with source.share_reads(LOCK) as shared, shared.reader(table, consistency, LOCK) as reader:
        for chunk in shared.plan_chunks(table, chunk_rows):
            batches = [[tuple(row.values()) for batch in reader.read(chunk) for row in batch.to_pylist()] for _ in "12"]
            # The second time it goes by what it has learnt the first time.
            assert batches[0] == batches[1]
            found += batches[0]
    return sorted(found)


def rows_of(server: PostgresServer, source: PostgresSource) -> list[tuple[Any, ...]]:
    return server.query("SELECT * FROM t ORDER BY id", database=source.settings.database)


def skip_since_17(server: PostgresServer) -> None:
    if server.binaries.major >= 17:
        pytest.skip("it looks up the names of an index's functions in pg_catalog alone when that is made")


def test_tables_whose_indexes_call_functions_by_bare_names_are_copied(
    postgres: PostgresServer,
    source: PostgresSource,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_since_17(postgres)
    run(postgres, source, TABLE)
    for number, statement in enumerate(EXPRESSIONS.values()):
        run(postgres, source, f"CREATE TABLE t{number} (LIKE t); ALTER TABLE t{number} ADD PRIMARY KEY (id)")
        run(postgres, source, f"ALTER TABLE t{number} REPLICA IDENTITY FULL; INSERT INTO t{number} SELECT * FROM t")
        run(postgres, source, statement.replace("ON t ", f"ON t{number} ").replace("FROM t", f"FROM t{number}"))
    with caplog.at_level(logging.INFO):
        point = source.record_initial(source.preflight(["public.t*", "!public.t"]), LOCK, RUN_ID)
    assert caplog.text.count("with search_path = pg_catalog") == len(point.tables) == len(EXPRESSIONS)
    for table in point.tables:
        assert copied(source, replace(point, tables=(table,))) == rows_of(postgres, source)
    # How a session goes on after the error is its own affair, whatever the expression is.
    index, condition, statistics = point.tables
    assert copied(source, replace(point, tables=(index,)), "exported") == rows_of(postgres, source)
    with source.reader(condition, "again", LOCK) as reader:
        batches = cast(KeyReader, reader).find(pa.array([tuple_data(("2",))], pa.binary()))
        assert [row["x"] for batch in batches for row in batch.to_pylist()] == ["e"]
    # A session that ADBC reads.
    monkeypatch.setattr(rows, "is_plain", lambda connection: False)
    assert copied(source, replace(point, tables=(statistics,))) == rows_of(postgres, source)


def test_a_name_that_no_path_of_ours_finds_is_told_with_what_needs_it(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    run(postgres, source, TABLE, "CREATE SCHEMA app", "ALTER FUNCTION fold(text) SET SCHEMA app")
    # When it is made, its names are found.
    run(
        postgres,
        source,
        NORM.format("", "app.fold($1)"),
        "CREATE OPERATOR @@@ (RIGHTARG = text, FUNCTION = norm)",
        *EXPRESSIONS.values(),
        "CREATE INDEX o ON t ((@@@ x))",
        "CREATE INDEX harmless ON t (lower(x))",
    )
    role = f"copier_{source.settings.database}"
    run(postgres, source, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'", f"ALTER TABLE t OWNER TO {role}")
    run(postgres, source, f"GRANT CREATE ON DATABASE {source.settings.database} TO {role}")
    copier = PostgresSource(replace(source.settings, user=role, password="p"))
    try:
        # It is found, and this user may not use it.
        (problem,) = problems_of(copier, "public.t")
        assert "permission denied for schema app" in problem.what
        assert problem.hint.startswith(f'grant "{role}" the privileges that the function needs')
        run(postgres, source, f"GRANT USAGE ON SCHEMA app TO {role}")
        copier.preflight(["public.t"])
        run(postgres, source, "SET check_function_bodies = off; " + NORM.format("", "fold($1)"))
        (problem,) = problems_of(source)
        assert (problem.where, problem.table) == ("public.t", "public.t")
        for cause in (*EXPRESSIONS, "index o", "function public.norm(text)", "fold(text) does not exist"):
            assert cause.replace("index ", "index public.") in problem.what
        assert "harmless" not in problem.what
        repair = problem.hint.partition(",")[0]
        assert repair == "ALTER FUNCTION public.norm(text) SET search_path = …"
        run(postgres, source, repair.replace("…", "app"))
        assert copied(source, record(source)) == rows_of(postgres, source)
        # Alternatively, set the search_path of the user's own sessions.
        run(postgres, source, "ALTER FUNCTION norm(text) RESET search_path")
        assert [one.where for one in problems_of(copier)] == ["public.t"]
        run(postgres, source, f"ALTER ROLE {role} IN DATABASE {source.settings.database} SET search_path = 'app'")
        copier.preflight(["public.t"])
    finally:
        run(postgres, source, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


CAPTURES = """
CREATE FUNCTION never(tid, tid) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION never(whole, bigint) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION never(whole, whole) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false';
CREATE FUNCTION format(text, kind) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'captured'$$;
CREATE FUNCTION enum_out(kind) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'captured'$$;
CREATE FUNCTION textin(text) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'captured'$$;
CREATE FUNCTION set_config(text, text, bool) RETURNS text LANGUAGE sql AS $$SELECT 'captured'$$;
CREATE DOMAIN tid AS text
"""


@pytest.mark.slow
def test_operators_and_functions_of_users_never_stand_for_those_of_the_server(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    """They are in the path under which such a table is read, and match its types better than the server's own."""
    run(postgres, source, "CREATE DOMAIN whole AS int", "CREATE TYPE kind AS ENUM ('a', 'b')")
    run(postgres, source, "CREATE TABLE t (id whole PRIMARY KEY, k kind, z interval, x text)")
    run(postgres, source, "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1, 'a', '1 day', 'É')")
    run(postgres, source, "INSERT INTO t SELECT i, 'b', '1 hour', 'e' FROM generate_series(2, 3000) i")
    run(postgres, source, "CREATE FUNCTION fold(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'")
    run(postgres, source, NORM.format("", "public.fold($1)"), "CREATE INDEX i ON t (norm(x))", "VACUUM ANALYZE t")
    run(postgres, source, NORM.format("", "fold($1)"), CAPTURES)
    for sign in ("=", "<", "<=", ">", ">=", "<>"):
        for right in ("bigint", "whole"):
            sql = f"CREATE OPERATOR {sign} (LEFTARG = whole, RIGHTARG = {right}, FUNCTION = never)"
            run(postgres, source, sql)
        sql = f"CREATE OPERATOR {sign} (LEFTARG = pg_catalog.tid, RIGHTARG = pg_catalog.tid, FUNCTION = never)"
        run(postgres, source, sql)
    point = record(source)
    read = copied(source, point)
    assert (len(read), read[0][:2], read[0][3]) == (3000, (1, "a"), "É")
    (table,) = point.tables
    for where, count in {"id >= 10": 2991, "id IN (1, 5, 3001) OR NOT id > 2": 3, "id <> 7 AND id < 10": 8}.items():
        part = replace(table, selection=Selection(parse(where)))
        assert len(copied(source, replace(point, tables=(part,)))) == count, where
    with source.reader(table, "again", LOCK) as reader:
        batches = cast(KeyReader, reader).find(pa.array([tuple_data((key,)) for key in ("7", "2999")], pa.binary()))
        assert sorted(row["id"] for batch in batches for row in batch.to_pylist()) == [7, 2999]


@pytest.mark.parametrize(
    ("least", "index"),
    [
        pytest.param("lowest()", "(id) WHERE kept(id)", id="own path"),
        pytest.param("length('abc'::varchar)", "(id) WHERE kept(id)", id="pinned"),
        pytest.param("length('abc'::varchar)", "(shown(id))", id="an expression"),
    ],
)
def test_an_index_that_means_something_else_in_our_path_hides_no_rows(
    postgres: PostgresServer, source: PostgresSource, least: str, index: str
) -> None:
    skip_since_17(postgres)
    run(
        postgres,
        source,
        "CREATE TABLE t (k int PRIMARY KEY, id int); ALTER TABLE t REPLICA IDENTITY FULL; CREATE SCHEMA app",
    )
    run(postgres, source, "INSERT INTO t SELECT i, i FROM generate_series(1, 20000) i")
    for schema, limit in (("app", 100), ("public", 0)):
        run(
            postgres,
            source,
            f"CREATE FUNCTION {schema}.lowest() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT {limit}'",
        )
    run(postgres, source, "CREATE FUNCTION app.length(varchar) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100'")
    run(postgres, source, f"CREATE FUNCTION kept(int) RETURNS bool LANGUAGE sql IMMUTABLE AS $$SELECT $1 > {least}$$")
    shown = f"SELECT CASE WHEN {least} = 100 THEN -$1 ELSE $1 END"
    run(postgres, source, f"CREATE FUNCTION shown(int) RETURNS int LANGUAGE sql IMMUTABLE AS $${shown}$$")
    run(postgres, source, f"SET search_path = app, public; CREATE INDEX i ON t {index}")
    run(postgres, source, "VACUUM ANALYZE t")
    point = record(source)
    part = replace(point.tables[0], selection=Selection(parse("id >= 10 AND id < 20")))
    read = copied(source, replace(point, tables=(part,)), chunk_rows=100_000)
    assert [row[0] for row in read] == list(range(10, 20))


def test_partitions_are_searched_through_their_root_whatever_their_checks_call(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    """A SELECT of the root may be planned with the constraints of its partitions, and one of a partition is not."""
    run(postgres, source, TABLE, "CREATE TABLE tree (id int PRIMARY KEY, x text) PARTITION BY RANGE (id)")
    for low in range(0, 40, 10):
        values = f"FOR VALUES FROM ({low}) TO ({low + 10})"
        run(postgres, source, f"CREATE TABLE leaf_{low} PARTITION OF tree (CHECK (norm(x) <> 'z')) {values}")
    run(postgres, source, "INSERT INTO tree SELECT i, 'é' FROM generate_series(0, 39) i")
    run(postgres, source, f"ALTER DATABASE {source.settings.database} SET constraint_exclusion = on")
    assert source.preflight(["public.tree"])
    with pytest.raises(psycopg.errors.UndefinedFunction):
        run(postgres, source, "SET search_path = pg_catalog; EXPLAIN SELECT FROM public.tree WHERE id < 5")
    # The user's own path has operators that match the types of the look-up better.
    run(postgres, source, "CREATE FUNCTION never(oid, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false'")
    run(postgres, source, "CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = int, FUNCTION = never)")
    keys = pa.array([tuple_data((key,)) for key in ("7", "33")], pa.binary())
    with session(source.settings) as connection:
        (table,) = read_tables(connection, [TableName("public", "tree")])
        lookup = KeyLookup(partial(query, connection), table)
        for path in ("pg_catalog, pg_temp", planned_under(connection)):
            with connection.transaction():
                set_path(connection, path)
                assert [len(own) for own in (lookup.by_leaf(keys) or {}).values()] == [1, 1], path
    with source.reader(table, "again", LOCK) as reader:
        found = cast(KeyReader, reader).find(keys)
        assert [row["id"] for batch in found for row in batch.to_pylist()] == [7, 33]


def test_event_triggers_that_use_bare_names_work(postgres: PostgresServer, source: PostgresSource) -> None:
    run(postgres, source, TABLE, AUDIT)
    for event in ("ddl_command_start", "ddl_command_end", "sql_drop"):
        run(postgres, source, f"CREATE EVENT TRIGGER {event} ON {event} EXECUTE FUNCTION note()")
    run(postgres, source, "TRUNCATE ddl_audit")
    plans = source.preflight(["public.t"])
    # It was tried, and rolled back.
    asked = "SELECT count(*) FROM {}"
    for catalog in ("ddl_audit", "pg_publication"):
        assert postgres.query(asked.format(catalog), database=source.settings.database) == [(0,)]
    source.record_initial(plans, LOCK, RUN_ID)
    source.release(RUN_ID)
    noted = {tag for (tag,) in postgres.query("SELECT tag FROM ddl_audit", database=source.settings.database)}
    assert {"ddl_command_end CREATE PUBLICATION", "ddl_command_end ALTER PUBLICATION"} <= noted
    assert {"ddl_command_start COMMENT", "sql_drop DROP PUBLICATION"} <= noted
    assert postgres.query(asked.format("pg_publication"), database=source.settings.database) == [(0,)]


def test_an_event_trigger_that_sets_something_for_the_session_changes_nothing_of_it(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    body = """SET search_path = public; SET row_security = on; SET "TimeZone" = 'Asia/Tokyo'; SET ROLE pg_monitor;
        SET synchronous_commit = on"""
    run(postgres, source, f"CREATE FUNCTION bend() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$")
    run(postgres, source, "CREATE EVENT TRIGGER bend ON ddl_command_end EXECUTE FUNCTION bend()")
    names = ("search_path", "row_security", "timezone", "role", "synchronous_commit")
    with session(source.settings) as connection:
        before = [value(connection, f"current_setting('{name}')") for name in names]
        execute(connection, "CREATE PUBLICATION lake")
        assert [value(connection, f"current_setting('{name}')") for name in names] == before


@pytest.mark.parametrize(
    ("event", "body", "said"),
    [
        ("ddl_command_start", "RAISE EXCEPTION 'no publications here'", "no publications here"),
        ("ddl_command_end", "INSERT INTO audit.ddl VALUES (tg_tag)", "permission denied for schema audit"),
        ("sql_drop", "PERFORM 1 / 0", "division by zero"),
    ],
)
def test_an_event_trigger_that_raises_is_named_beforehand_and_nothing_is_left(
    postgres: PostgresServer, source: PostgresSource, event: str, body: str, said: str
) -> None:
    role = f"copier_{source.settings.database}"
    run(postgres, source, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'", TABLE, AUDIT)
    run(postgres, source, f"GRANT CREATE ON DATABASE {source.settings.database} TO {role}")
    run(postgres, source, f"ALTER TABLE t OWNER TO {role}", "CREATE SCHEMA audit", "CREATE TABLE audit.ddl (tag text)")
    function = f"CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
    run(postgres, source, "CREATE EVENT TRIGGER harmless ON ddl_command_end EXECUTE FUNCTION note()")
    run(postgres, source, f"GRANT INSERT ON ddl_audit TO {role}", function)
    run(postgres, source, f"CREATE EVENT TRIGGER refuse ON {event} EXECUTE FUNCTION refuse()")
    copier = PostgresSource(replace(source.settings, user=role, password="p"))
    try:
        (problem,) = problems_of(copier, "public.t")
        assert problem.where == f'event trigger "refuse" (ON {event}, function public.refuse())'
        assert said in problem.what
        assert "PUBLICATION" in problem.what
        assert "ALTER FUNCTION public.refuse() SET search_path" in problem.hint
        # Also where it is made after preflight.
        run(postgres, source, "ALTER EVENT TRIGGER refuse DISABLE")
        plans = copier.preflight(["public.t"])
        run(postgres, source, "ALTER EVENT TRIGGER refuse ENABLE")
        if event == "sql_drop":
            copier.record_initial(plans, LOCK, RUN_ID)
            with pytest.raises(ConfigurationError, match="its publication could not be dropped") as left:
                copier.release(RUN_ID)
            slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
            assert postgres.query(slots, database=source.settings.database) == [(0,)]
            drop = left.value.hint.removeprefix("run ").partition(" as a user")[0]
            run(postgres, source, "ALTER EVENT TRIGGER refuse DISABLE", drop)
        else:
            with pytest.raises(ConfigurationError, match=said):
                copier.record_initial(plans, LOCK, RUN_ID)
        assert postgres.query("SELECT pubname FROM pg_publication", database=source.settings.database) == []
        # What the owner made need not be made.
        run(postgres, source, "ALTER EVENT TRIGGER refuse DISABLE", "CREATE PUBLICATION lake FOR TABLE t")
        run(postgres, source, "ALTER EVENT TRIGGER refuse ENABLE")
        named = PostgresSource(replace(copier.settings, options={"publication": "lake"}))
        assert named.preflight(["public.t"])
    finally:
        run(postgres, source, "DROP EVENT TRIGGER refuse", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_only_what_event_triggers_do_is_told_of_them(
    postgres: PostgresServer,
    source: PostgresSource,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def function(body: str) -> str:
        sql = f"CREATE OR REPLACE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
        return f"SET event_triggers = off; {sql}" if postgres.binaries.major >= 17 else sql

    run(postgres, source, TABLE, "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    run(postgres, source, "CREATE FOREIGN DATA WRAPPER w", "CREATE SERVER s FOREIGN DATA WRAPPER w")
    run(postgres, source, "CREATE TABLE tree (id int) PARTITION BY RANGE (id)")
    run(postgres, source, "CREATE FOREIGN TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (1) SERVER s")
    run(postgres, source, function("NULL"))
    tags = "WHEN TAG IN ('CREATE PUBLICATION')"
    run(postgres, source, f"CREATE EVENT TRIGGER act ON ddl_command_end {tags} EXECUTE FUNCTION act()")
    problems = problems_of(source)
    assert sorted(one.where for one in problems) == ["public.tree", "public.u"]
    assert all("is unlogged" in one.what or "foreign table" in one.what for one in problems)
    # What may pass may do so until the run.
    run(postgres, source, function("RAISE EXCEPTION 'busy' USING ERRCODE = 'deadlock_detected'"))
    monkeypatch.setattr(users_code, "_DRY_RUN", "SET LOCAL lock_timeout = '10ms'")
    # An earlier test may have left the level at INFO.
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert source.preflight(["public.t"])
        with postgres.connect(database=source.settings.database, autocommit=False) as vacuum:
            run(postgres, source, function("NULL"))
            vacuum.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
            assert source.preflight(["public.t"])
    assert caplog.text.count("Could not test whether event triggers reject") == 2
    # The server reports only that the publication is missing, or is not this user's.
    drop = "EXECUTE (SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication)"
    for body in (drop, "SET ROLE pg_monitor", "RAISE EXCEPTION '%', repeat('no ', 100000)"):
        run(postgres, source, function(body))
        (problem,) = problems_of(source, "public.t")
        assert problem.where == 'event trigger "act" (ON ddl_command_end, function public.act())'
        assert len(problem.what) < 2000
    with session(source.settings) as connection:
        tables = read_tables(connection, [TableName("public", "t")])
        run(postgres, source, "DROP TABLE t")
        assert unplannable(connection, tables) == []


@pytest.mark.skipif(NEWEST < 17, reason="no server has event triggers ON login")
def test_an_event_trigger_on_login_that_raises_is_named(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory(None, NEWEST)
    source = PostgresSource(settings_of(server, "postgres"))
    run(server, source, TABLE, AUDIT, "CREATE EVENT TRIGGER greet ON login EXECUTE FUNCTION note()")
    with pytest.raises(ConfigurationError) as refused:
        source.preflight(["public.t"])
    assert 'relation "ddl_audit" does not exist' in refused.value.message
    assert "event trigger ON login" in refused.value.hint
    run(server, source, "ALTER FUNCTION note() SET search_path = public")
    # Here, too, statistics are planned with each SELECT.
    run(server, source, EXPRESSIONS["statistics public.s"])
    with pytest.raises(psycopg.errors.UndefinedFunction):
        run(server, source, "SET search_path = pg_catalog; EXPLAIN SELECT FROM public.t")
    assert copied(source, record(source)) == rows_of(server, source)
    source.release(RUN_ID)


def test_row_level_security_that_is_forced_in_mid_run_is_named(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    role = f"copier_{source.settings.database}"
    run(postgres, source, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'", TABLE)
    run(postgres, source, f"GRANT CREATE ON DATABASE {source.settings.database} TO {role}")
    run(postgres, source, f"ALTER TABLE t OWNER TO {role}")
    copier = PostgresSource(replace(source.settings, user=role, password="p"))
    try:
        point = record(copier)
        run(postgres, source, "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t FORCE ROW LEVEL SECURITY")
        with pytest.raises(ConfigurationError, match="row-level security hides rows") as refused:
            copied(copier, point)
        run(postgres, source, refused.value.hint.partition(", or")[0])
        assert copied(copier, point) == rows_of(postgres, source)
        run(postgres, source, "ALTER TABLE t OWNER TO postgres", "ALTER TABLE t DISABLE ROW LEVEL SECURITY")
        with pytest.raises(ConfigurationError, match=r"lacks SELECT"):
            copied(copier, point)
    finally:
        copier.release(RUN_ID)
        run(postgres, source, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
