"""A view is copied only if it means the same in every session, and only as it was at the position of the snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions, TableOptions
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import PreflightError, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.planning.point import late_problems
from airflow_provider_cdc.sources.planning.selections import requested
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server.session import session
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.reading import Run
from tests.sources.postgres.log.reading import settings as settings_of

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(9,2), at timestamptz, day date, m mood, tags text[], doc jsonb);
INSERT INTO t SELECT i, 'v' || i, i / 3.0, now(), '2026-01-01'::date + i, 'sad', ARRAY['a'], '{"a": 1}'
FROM generate_series(1, 20) i;
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (100);
INSERT INTO p SELECT i, 'p' || i FROM generate_series(1, 20) i;
CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent);
CREATE UNLOGGED TABLE quick (id int);
CREATE FUNCTION mine(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION same(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = same);
CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE DOMAIN positive AS int CHECK (mine(VALUE) > 0);
CREATE SEQUENCE seq;
CREATE TABLE guarded (id int); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
ALTER TABLE guarded FORCE ROW LEVEL SECURITY;
CREATE TYPE pair AS (a int);
CREATE TYPE closed AS ENUM ('no', 'yes');
CREATE FUNCTION closed_as_json(closed) RETURNS json IMMUTABLE LANGUAGE sql AS 'SELECT now()::text::json';
CREATE CAST (closed AS json) WITH FUNCTION closed_as_json(closed);
CREATE TYPE rank AS ENUM ('low', 'high');
CREATE FUNCTION compare(rank, rank) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0';
CREATE OPERATOR CLASS of_rank DEFAULT FOR TYPE rank USING btree AS OPERATOR 3 = (anyenum, anyenum),
    FUNCTION 1 compare(rank, rank);
CREATE TYPE span AS RANGE (subtype = int4);
CREATE DOMAIN reach AS span;
CREATE TABLE odd (id int, c pair, shut closed, r rank, w timetz, s reach);
INSERT INTO odd VALUES (1, ROW(1), 'no', 'low', '12:00+00', '[1,2)');
CREATE VIEW inner_safe AS SELECT id, v FROM t;
CREATE VIEW inner_unsafe AS SELECT id, random() AS r FROM t
"""
SAFE = {
    "plain": "SELECT id, v AS \"odd {NAME :funcid 1598 }\" FROM t WHERE id > 3 AND v LIKE 'v%' AND v <> ':funcid 1598'",
    "joins and sums": "SELECT t.id, count(*), sum(n), max(p.v) FROM t LEFT JOIN p USING (id) GROUP BY t.id",
    "of a view": "SELECT * FROM inner_safe",
    "windows": "SELECT id, rank() OVER (PARTITION BY day ORDER BY n), lag(v) OVER w FROM t WINDOW w AS (ORDER BY id)",
    "unions": "SELECT id FROM t UNION SELECT id FROM p ORDER BY 1 LIMIT 7",
    "subqueries": "SELECT id, (SELECT max(v) FROM p WHERE p.id = t.id) AS m, EXISTS (SELECT FROM p) AS e FROM t",
    "common tables": "WITH RECURSIVE w(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM w WHERE i < 5) SELECT i FROM w, t",
    "cases": "SELECT CASE WHEN id > 3 THEN 'a' ELSE v END AS c, coalesce(v, 'x') AS x, greatest(id, 3) AS g FROM t",
    "casts": "SELECT id::text AS a, day::text AS b, v::bytea AS c, m::text AS d, n::float8 AS e, doc->>'a' AS f FROM t",
    "times": "SELECT date_trunc('day', at) AS d, at::date AS e, extract(hour FROM at) AS h, at + '1 day' AS f FROM t",
    "arrays and JSON": "SELECT tags[1] AS a, unnest(tags) AS b, jsonb_build_object('v', v) AS c, (t).v AS d FROM t",
    "aggregates": "SELECT string_agg(v, ',' ORDER BY id) AS s, array_agg(id ORDER BY id) AS a, json_agg(v) AS j FROM t",
    "grouping sets": "SELECT day, m, grouping(day), count(*) FROM t GROUP BY GROUPING SETS ((day), (m), ())",
    "a materialized view": "SELECT * FROM kept",
    "enums that can become JSON": "SELECT shut, count(*) FROM odd GROUP BY shut",
    "in": "SELECT id FROM t WHERE id IN (1, 2, 3) AND (id, v) IN (SELECT id, v FROM p) AND m = 'sad' OR v IS NULL",
}
UNSAFE = {
    "SELECT id, now() AS at FROM t": "depends on more than",
    "SELECT id FROM t WHERE day < current_date": "SQLVALUEFUNCTION",
    "SELECT id, current_user AS u FROM t": "SQLVALUEFUNCTION",
    "SELECT id, random() AS r FROM t": "depends on more than",
    "SELECT * FROM inner_unsafe": "random",
    "SELECT id, nextval('seq') AS n FROM t": "nextval",
    "SELECT last_value FROM seq": "a sequence",
    "SELECT mine(id) AS m FROM t": "user-defined",
    "SELECT id FROM t WHERE id === 3": "user-defined",
    "SELECT total(id) AS s FROM t": "user-defined",
    "SELECT total(id) OVER () AS s FROM t": "user-defined",
    "SELECT id::positive AS p FROM t": "COERCETODOMAIN",
    "SELECT id, v::date AS d FROM t": "to date by",
    "SELECT id, v::timestamptz AS d FROM t": "to timestamp with time zone by",
    "SELECT id, tableoid::regclass AS r FROM t": "system columns",
    "SELECT id, ctid AS c FROM t": "system columns",
    "SELECT id, v::regclass AS r FROM t": "names of objects",
    "SELECT relname::text AS n FROM pg_class": "a system relation",
    "SELECT table_name::text AS n FROM information_schema.tables": "a system relation",
    "SELECT id FROM parent": "inherit",
    "SELECT id FROM quick": "not logged",
    "SELECT id FROM t TABLESAMPLE SYSTEM (50)": "TABLESAMPLECLAUSE",
    "SELECT id FROM t FOR UPDATE": "ROWMARKCLAUSE",
    "SELECT id, to_char(at, 'TMMonth') AS c FROM t": "to_char",
    "SELECT id, current_setting('TimeZone') AS c FROM t": "current_setting",
    "SELECT id, pg_backend_pid() AS c FROM t": "pg_backend_pid",
    "SELECT id, to_tsvector(v) AS c FROM t": "to_tsvector",
    "SELECT id, has_table_privilege('t', 'SELECT') AS c FROM t": "has_table_privilege",
    "SELECT x FROM xmltable('/a' PASSING XMLPARSE(CONTENT '<a/>') COLUMNS x text)": "TABLEFUNC",
    "SELECT id, age(at) AS c FROM t": "age",
    "SELECT s.id FROM generate_series(1, 3) s(id) WHERE pg_sleep(0) IS NOT NULL": "pg_sleep",
    "SELECT w AT TIME ZONE 'Europe/Berlin' AS c FROM odd": "timezone",
    "SELECT to_json(shut)::text AS c FROM odd": "closed, whose functions",
    "SELECT row_to_json(odd)::text AS c FROM odd": "closed, whose functions",
    "SELECT DISTINCT ARRAY[r] AS c FROM odd": "rank, whose functions",
    "SELECT s FROM odd": "span, whose functions",
    "SELECT id FROM guarded": "row-level security",
}


@pytest.fixture
def source(postgres: PostgresServer, database: str, run: Run) -> PostgresSource:
    run(*SETUP.split(";"), "CREATE MATERIALIZED VIEW kept AS SELECT id, v FROM t WHERE id < 10")
    return PostgresSource(settings_of(postgres, database))


def table_of(source: PostgresSource, name: str) -> Table:
    with session(source.settings) as connection:
        return read_tables(connection, [TableName("public", name)])[0]


@contextmanager
def reading(source: PostgresSource, table: Table) -> Iterator[Any]:
    """A function that reads the table in one snapshot, which is made first."""
    with source.share_reads(LockPolicy()) as shared:

        def rows() -> list[tuple[Any, ...]]:
            with shared.reader(table, "exported", LockPolicy()) as reader:
                chunks = shared.plan_chunks(table, 3)
                found = [batch for chunk in chunks for batch in reader.read(chunk)]
            return sorted((tuple(row.values()) for batch in found for row in batch.to_pylist()), key=str)

        yield rows


@pytest.mark.slow
def test_views_that_mean_the_same_everywhere_are_accepted_and_read_whole(
    source: PostgresSource, run: Run, postgres: PostgresServer
) -> None:
    for number, definition in enumerate(SAFE.values()):
        run(f"CREATE VIEW safe_{number} AS {definition}")
    names = [f"public.safe_{number}" for number in range(len(SAFE))]
    plans = source.preflight([*names, "public.kept", "public.t"])
    assert {(str(plan.table), plan.consistency, plan.at_upper) for plan in plans} == {
        *((name, "exported", True) for name in [*names, "public.kept"]),
        ("public.t", "again", True),
    }
    for name, (what, definition) in zip(names, SAFE.items(), strict=True):
        table = table_of(source, name.partition(".")[2])
        ((count,),) = postgres.query(f"SELECT count(*) FROM ({definition}) v", database=source.settings.database)
        with reading(source, table) as rows:
            assert len(rows()) == count, what
            assert len(source.plan_chunks(table, 1)) == 1


def test_views_that_may_mean_another_thing_are_refused(source: PostgresSource, run: Run) -> None:
    names = {f"public.unsafe_{number}": definition for number, definition in enumerate(UNSAFE)}
    run(*(f"CREATE VIEW {name} AS {definition}" for name, definition in names.items()), "CREATE ROLE ordinary")
    try:
        for name, definition in names.items():
            if "guarded" in definition:
                # Its owner's rights count.
                run(f"ALTER VIEW {name} OWNER TO ordinary", "GRANT SELECT ON guarded TO ordinary")
        with pytest.raises(PreflightError) as refused:
            source.preflight(list(names))
    finally:
        run("DROP OWNED BY ordinary", "DROP ROLE ordinary")
    found: dict[str, str] = {}
    for problem in refused.value.problems:
        found[problem.table] = f"{found.get(problem.table, '')} {problem.what}"
    assert found.keys() == names.keys()
    for name, definition in names.items():
        assert UNSAFE[definition] in found[name], definition


def test_views_are_copied_only_where_they_are_named(source: PostgresSource, run: Run) -> None:
    assert {str(plan.table) for plan in source.preflight(["public.t", "public.p*", "!public.parent"])} == {
        "public.t",
        "public.p",
        "public.p1",
        "public.p2",
    } - {"public.p1", "public.p2"}
    with pytest.raises(PreflightError, match="without a star"):
        source.preflight(["public.inner_s*"])


def test_a_view_is_exact_only_where_it_is_read(source: PostgresSource) -> None:
    with pytest.raises(PreflightError, match=r"set `Read\.consistency` to `auto`"):
        source.preflight(["public.kept"], TableOptions("watermark"))
    plans = source.preflight(["public.kept", "public.t"], TableOptions("exported"))
    assert [(plan.consistency, plan.at_upper) for plan in plans] == [("exported", True)] * 2
    (problem,) = late_problems(plans, StepOptions(as_of="2026-01-01T00:00:00Z"))
    assert "is a view" in problem.what
    assert "copy no views" in problem.hint


def test_a_view_is_read_as_it_was_in_the_snapshot(source: PostgresSource, run: Run) -> None:
    run("CREATE VIEW joined AS SELECT t.id, t.v, p.v AS w FROM t JOIN p USING (id) JOIN kept USING (id)")
    table = table_of(source, "joined")
    with reading(source, table) as rows:
        before = rows()
        run("UPDATE t SET v = 'later'", "DELETE FROM p WHERE id = 3", "INSERT INTO p VALUES (50, 'new')")
        assert rows() == before
    assert len(before) == 9


CHANGES = {
    "TRUNCATE p1": SchemaChanged,
    "ALTER TABLE t ADD COLUMN more float8 DEFAULT random()": SchemaChanged,
    "CREATE TABLE p3 (id int NOT NULL, v text); INSERT INTO p3 VALUES (200, 'x'); "
    "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)": SchemaChanged,
    "CREATE OR REPLACE VIEW seen AS SELECT id, 'other' AS v FROM p": SchemaChanged,
    "ALTER TABLE p DETACH PARTITION p1": SchemaChanged,
    "ALTER TABLE p DETACH PARTITION p1; ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)": SchemaChanged,
    "REFRESH MATERIALIZED VIEW kept": SourceUnavailable,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_view_reads_must_stay_what_it_was(change: str, source: PostgresSource, run: Run) -> None:
    """At the latest when the tables are checked again, at the end of the reads."""
    run(
        "CREATE VIEW seen AS SELECT id, v FROM p UNION ALL SELECT id, v FROM kept"
        if "TABLE t " not in change
        else "CREATE VIEW seen AS SELECT v FROM t"
    )
    table = table_of(source, "seen")
    with reading(source, table) as rows:
        run(*change.split(";"))

        def read_and_check() -> None:
            rows()
            source.check_tables([table])

        with pytest.raises(CHANGES[change]):
            read_and_check()


OF_ROWS = {
    "SELECT row_to_json(p)::text AS j FROM p": (
        "ALTER TABLE p ADD COLUMN z int",
        "ALTER TABLE p RENAME COLUMN v TO w; ALTER TABLE p RENAME COLUMN w TO v",
    ),
    "SELECT p::text AS j FROM p": ("ALTER TABLE p ADD COLUMN z int",),
    "SELECT c::text AS j FROM odd": ("ALTER TYPE pair ADD ATTRIBUTE b int",),
    "SELECT to_json(ARRAY[c])::text AS j FROM odd": ("ALTER TYPE pair RENAME ATTRIBUTE a TO b",),
    "SELECT to_json(m)::text AS j FROM t": (
        (
            "CREATE FUNCTION as_json(mood) RETURNS json LANGUAGE sql AS 'SELECT NULL::json'; "
            "CREATE CAST (mood AS json) WITH FUNCTION as_json(mood)"
        ),
    ),
    "SELECT row_to_json(inner_safe)::text AS j FROM inner_safe": ("ALTER VIEW inner_safe RENAME COLUMN v TO w",),
    "SELECT row_to_json(kept)::text AS j FROM kept": ("ALTER MATERIALIZED VIEW kept RENAME COLUMN v TO w",),
}


@pytest.mark.parametrize(
    ("definition", "change"), [(one, change) for one, every in OF_ROWS.items() for change in every]
)
def test_values_of_types_whose_fields_were_altered_stop_it(
    definition: str, change: str, source: PostgresSource, run: Run
) -> None:
    """The text and the JSON of a row have the fields, and their names, of the moment of the read."""
    run(f"CREATE VIEW seen AS {definition}")
    source.preflight(["public.seen"])
    table = table_of(source, "seen")
    source.check_tables([table])
    run(*change.split(";"))
    with pytest.raises(SchemaChanged, match="a relation that it reads"):
        source.check_tables([table])


def test_a_virtual_column_that_a_view_reads_is_part_of_its_definition(postgres_factory: PostgresFactory) -> None:
    if max(one.major for one in installations()) < 18:
        pytest.skip("no PostgreSQL here has virtual columns")
    server = postgres_factory(None, 18)
    with server.connect() as connection:
        for statement in (
            "CREATE TABLE g (id int, w int GENERATED ALWAYS AS (id * 2), o oid GENERATED ALWAYS AS (tableoid))",
            "CREATE VIEW refused AS SELECT o FROM g",
            "CREATE TABLE h (id int, w int GENERATED ALWAYS AS (id * 2))",
            "CREATE VIEW seen AS SELECT w FROM h",
        ):
            connection.execute(statement)
        source = PostgresSource(settings_of(server, "postgres"))
        with pytest.raises(PreflightError, match="system columns"):
            source.preflight(["public.refused"])
        table = table_of(source, "seen")
        source.check_tables([table])
        connection.execute("ALTER TABLE h ALTER COLUMN w SET EXPRESSION AS (id * 3)")
        with pytest.raises(SchemaChanged, match="a relation that it reads"):
            source.check_tables([table])


GONE_BY_THE_READ = {
    "CREATE VIEW seen AS SELECT id, v FROM p": (
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300)",
        "INSERT INTO p VALUES (200, 'x')",
        "DROP TABLE p3",
    ),
    "CREATE VIEW seen AS SELECT id, v FROM t": (
        "CREATE TABLE heir () INHERITS (t)",
        "INSERT INTO heir (id) VALUES (200)",
        "DROP TABLE heir",
    ),
}


@pytest.mark.parametrize("definition", GONE_BY_THE_READ)
def test_rows_that_the_snapshot_has_and_the_read_finds_no_more_stop_it(
    definition: str, source: PostgresSource, run: Run
) -> None:
    """A partition that came after the tables were recorded, and went after the snapshot was made, leaves no trace."""
    *came, went = GONE_BY_THE_READ[definition]
    run(definition)
    table = table_of(source, "seen")
    with source.share_reads(LockPolicy()) as shared:
        shared.bound_view([table])
    run(*came)
    with source.share_reads(LockPolicy()) as shared:
        run(went)
        with pytest.raises(SchemaChanged, match="for a while"):
            shared.bound_view([table])
    source.check_tables([table])


CAME_AND_WENT = {
    "a partition": (
        (
            "CREATE TABLE p3 (id int NOT NULL, v text); INSERT INTO p3 VALUES (200, 'x'); "
            "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)"
        ),
        "DROP TABLE p3",
    ),
    "the rows": ("TRUNCATE p1", ""),
}


@pytest.mark.parametrize("what", CAME_AND_WENT)
def test_what_the_catalog_shows_at_the_read_alone_stops_it(what: str, source: PostgresSource, run: Run) -> None:
    """The check at the end of the reads may come after it is removed. A new index changes nothing."""
    run("CREATE VIEW seen AS SELECT id, v FROM p")
    table = table_of(source, "seen")
    came, went = CAME_AND_WENT[what]
    with reading(source, table) as rows:
        run("CREATE INDEX ON p (v)")
        assert len(rows()) == 20
        run(*came.split(";"))
        with pytest.raises(SchemaChanged, match="which the view reads"):
            rows()
    if went:
        run(went)
        source.check_tables([table])


@pytest.mark.parametrize("how", ["", "CONCURRENTLY "])
def test_a_materialized_view_has_what_the_last_refresh_before_the_snapshot_left(
    how: str, source: PostgresSource, run: Run
) -> None:
    """A refresh in mid-run stops nothing: before the snapshot it counts, and after it the snapshot is made anew."""
    run("CREATE UNIQUE INDEX ON kept (id)")
    table = table_of(source, "kept")
    run("UPDATE t SET v = 'once'", f"REFRESH MATERIALIZED VIEW {how}kept")
    with reading(source, table) as rows:
        assert {v for _, v in rows()} == {"once"}
        run("UPDATE t SET v = 'twice'", f"REFRESH MATERIALIZED VIEW {how}kept")
        if how:
            assert {v for _, v in rows()} == {"once"}
        else:
            # The new file's rows are frozen: any snapshot shows them.
            with pytest.raises(SourceUnavailable, match="refreshed"):
                rows()
    with reading(source, table) as rows:
        assert {v for _, v in rows()} == {"twice"}
    source.check_tables([table])


def test_a_materialized_view_that_was_never_filled_is_refused(source: PostgresSource, run: Run) -> None:
    run("CREATE MATERIALIZED VIEW empty AS SELECT random() AS r WITH NO DATA")
    with pytest.raises(PreflightError, match="never filled"):
        source.preflight(["public.empty"])
    run("REFRESH MATERIALIZED VIEW empty")
    assert len(source.preflight(["public.empty"])) == 1


def test_columns_of_a_view_can_be_left_out(source: PostgresSource, run: Run) -> None:
    run("CREATE ROLE seer LOGIN REPLICATION PASSWORD 'p'", "CREATE VIEW seen AS SELECT id, v FROM t")
    run(f"GRANT CREATE ON DATABASE {source.settings.database} TO seer", "GRANT SELECT (id) ON seen TO seer")
    try:
        seer = PostgresSource(dataclasses.replace(source.settings, user="seer", password="p"))
        with pytest.raises(PreflightError, match="lacks SELECT"):
            seer.preflight(["public.seen"])
        (plan,) = seer.preflight(["public.seen"], parts=requested(None, {"public.seen": ["id"]}))
        assert plan.at_upper
    finally:
        run("DROP OWNED BY seer", "DROP ROLE seer")
