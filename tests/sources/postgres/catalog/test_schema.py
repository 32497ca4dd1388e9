"""Tables as the server describes them, and every change of a table that a run must detect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import AT_UPPER, check_unchanged, difference
from airflow_provider_cdc.sources.postgres.catalog.types import unmapped
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, session
from airflow_provider_cdc.sources.postgres.steps.chunk_reader import check_in_place
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.catalog_reading import read_tables, resolve
from tests.sources.postgres.log.reading import settings as settings_of

SHOP = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('glad', 'sad');
CREATE TYPE shop.feeling AS (since date, mood shop.mood);
CREATE DOMAIN shop.price AS numeric(10,2);
CREATE DOMAIN shop.fair AS shop.price CHECK (VALUE > 0);
CREATE TABLE shop.orders (
    id int PRIMARY KEY, gone int, total shop.fair, moods shop.mood[], feeling shop.feeling,
    at timestamp(3) with time zone NOT NULL, double int GENERATED ALWAYS AS (id * 2) STORED, places int2vector,
    span int4range, spans int4multirange);
ALTER TABLE shop.orders DROP gone;
CREATE TABLE shop.parts (id int, code text, PRIMARY KEY (code, id)) PARTITION BY RANGE (id);
CREATE TABLE shop.parts_low PARTITION OF shop.parts FOR VALUES FROM (0) TO (10);
CREATE TABLE shop.parts_high PARTITION OF shop.parts FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
CREATE TABLE shop.parts_one PARTITION OF shop.parts_high FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE SCHEMA elsewhere;
CREATE TABLE elsewhere.places (id int, town text);
CREATE TABLE shop.visits (at date, place elsewhere.places);
CREATE VIEW shop.seen AS SELECT * FROM shop.visits;
CREATE TABLE shop."Odd ""one"" out" (id int);
"""
ORDERS, PARTS, VISITS = (TableName("shop", name) for name in ("orders", "parts", "visits"))


@pytest.fixture
def shop(postgres: PostgresServer, database: str) -> Iterator[Connection]:
    postgres.query(SHOP, database=database)
    with session(settings_of(postgres, database)) as connection:
        yield connection


def key_of(connection: Connection, definition: str) -> tuple[str, ...]:
    query(connection, "DROP TABLE IF EXISTS keyed")
    query(connection, f"CREATE TABLE public.keyed ({definition})")
    table = read_tables(connection, [TableName("public", "keyed")])[0]
    query(connection, "DROP TABLE public.keyed")
    return table.key


def test_patterns_name_tables_and_never_partitions_or_the_server_s_own_and_views_one_by_one(shop: Connection) -> None:
    names, problems = resolve(shop, ["shop.*", "shop.orders"])
    assert list(map(str, names)) == ['shop.Odd "one" out', "shop.orders", "shop.parts", "shop.visits"]
    assert problems == []
    assert resolve(shop, ["shop.seen", '"shop".seen']) == ([TableName("shop", "seen")], [])
    wrong = ["shop.parts_one", "shop.se*n", "pg_catalog.pg_class", "shop.x*", "shop.nothing", "shop"]
    names, problems = resolve(shop, wrong)
    assert names == []
    said = ["a partition of shop.parts", "a view", "a system schema", "matches no table", "no such table", "not name"]
    for problem, words in zip(problems, said, strict=True):
        assert words in problem.what


def test_columns_say_what_their_values_are(shop: Connection) -> None:
    (orders,) = read_tables(shop, [ORDERS])
    assert decode(Table, encode(orders), "") == orders
    found = {
        column.name: (column.type, column.nullable, column.details["kind"], column.details["base"])
        for column in orders.columns
    }
    assert found == {
        "id": ("integer", False, "base", "int4"),
        "total": ("shop.fair", True, "domain", "numeric"),
        "moods": ("shop.mood[]", True, "array", "_mood"),
        "feeling": ("shop.feeling", True, "composite", "feeling"),
        "at": ("timestamp(3) with time zone", False, "base", "timestamptz"),
        "double": ("integer", True, "base", "int4"),
        # Most of its description matches an array, but not the part that matters: its output function.
        "places": ("int2vector", True, "base", "int2vector"),
        "span": ("int4range", True, "range", "int4range"),
        "spans": ("int4multirange", True, "multirange", "int4multirange"),
    }
    assert orders.column("total").details["base_typmod"] == ((10 << 16) | 2) + 4
    assert orders.column("double").details["generated"] == "stored"


def test_leaves_of_a_tree_are_those_that_hold_rows(shop: Connection) -> None:
    parts, visits = read_tables(shop, [PARTS, VISITS])
    assert [leaf.sql for leaf in leaves(parts)] == ['"shop"."parts_low"', '"shop"."parts_one"']
    assert [leaf.sql for leaf in leaves(visits)] == ['"shop"."visits"']
    assert parts.key == ("code", "id")


def test_keys_are_those_that_tell_rows_apart_at_every_moment(shop: Connection) -> None:
    assert key_of(shop, "a int NOT NULL, b int NOT NULL, UNIQUE (b, a)") == ("b", "a")
    assert key_of(shop, "a int NOT NULL UNIQUE, b int PRIMARY KEY") == ("b",)
    assert key_of(shop, "a int NOT NULL, b int, UNIQUE (a) INCLUDE (b)") == ("a",)
    assert key_of(shop, "a int UNIQUE") == ()
    # Within a transaction, two rows may have the same key.
    assert key_of(shop, "a int PRIMARY KEY DEFERRABLE") == ()
    query(shop, "CREATE TABLE public.indexed (a int NOT NULL, b int NOT NULL)")
    query(shop, "CREATE UNIQUE INDEX ON public.indexed (a) WHERE b > 0")
    query(shop, "CREATE UNIQUE INDEX ON public.indexed ((a + b))")
    assert read_tables(shop, [TableName("public", "indexed")])[0].key == ()


def test_a_not_null_that_was_never_checked_does_not_count(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory(version=18)
    server.query("CREATE TABLE unchecked (a int UNIQUE)")
    server.query("ALTER TABLE unchecked ADD CONSTRAINT there NOT NULL a NOT VALID")
    with server.connect() as connection:
        (table,) = read_tables(connection, [TableName("public", "unchecked")])
    assert table.key == ()
    assert table.columns[0].nullable


def test_a_table_that_is_not_there_is_named(shop: Connection) -> None:
    with pytest.raises(SchemaChanged, match=r"shop\.nothing: the table does not exist"):
        read_tables(shop, [ORDERS, TableName("shop", "nothing")])


def test_a_unique_index_that_was_made_anew_stops_the_run_and_the_way_out_works(shop: Connection) -> None:
    name = TableName("public", "bare")
    query(shop, "CREATE TABLE public.bare (a int NOT NULL, b int)")
    query(shop, 'CREATE UNIQUE INDEX "the key" ON public.bare (a)')
    (recorded,) = read_tables(shop, [name])
    assert recorded.key == ("a",)
    query(shop, "REINDEX TABLE CONCURRENTLY public.bare")
    (anew,) = read_tables(shop, [name])
    for versions in (True, False):
        assert "REINDEX CONCURRENTLY" in difference(recorded, anew, versions=versions)
    way_out = re.search("ALTER TABLE .*(?= makes)", difference(recorded, anew))
    assert way_out
    query(shop, way_out[0])
    (recorded,) = read_tables(shop, [name])
    query(shop, "REINDEX TABLE CONCURRENTLY public.bare")
    assert difference(recorded, *read_tables(shop, [name]), versions=False) == ""
    query(shop, 'ALTER TABLE public.bare DROP CONSTRAINT "the key"')
    assert difference(recorded, *read_tables(shop, [name]), versions=False) == "its key has changed"


HARMLESS = (
    "ANALYZE",
    "VACUUM shop.orders",
    "CREATE INDEX ON shop.orders (at)",
    "CREATE INDEX ON shop.parts_low (id)",
    "GRANT SELECT ON shop.orders TO public",
    "REINDEX TABLE shop.orders",
    "INSERT INTO shop.visits VALUES (now())",
    "COMMENT ON COLUMN shop.orders.at IS 'when'",
    "GRANT SELECT (at) ON shop.orders TO public",
    "GRANT ALL ON shop.parts, shop.parts_low TO public",
    "GRANT USAGE ON TYPE shop.mood TO public",
    "ALTER TABLE shop.orders SET (fillfactor = 70)",
    "ALTER TABLE shop.parts_low SET (autovacuum_enabled = off)",
    "ALTER TABLE shop.orders ALTER at SET STATISTICS 10",
    "ALTER TABLE shop.orders ALTER moods SET STORAGE EXTERNAL",
    "ALTER TABLE shop.orders ALTER at SET DEFAULT now()",
    "ALTER TABLE shop.orders ADD CONSTRAINT positive CHECK (id > -1)",
    "ALTER TABLE shop.parts ADD CONSTRAINT positive CHECK (id > -1)",
    "ALTER TABLE shop.parts ADD CONSTRAINT there FOREIGN KEY (id) REFERENCES shop.orders",
    "CREATE TRIGGER t BEFORE UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TRIGGER t BEFORE UPDATE ON shop.parts FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "REINDEX TABLE CONCURRENTLY shop.orders",
    "REINDEX TABLE CONCURRENTLY shop.parts_one",
    "CREATE UNIQUE INDEX also ON shop.orders (id)",
    "CREATE TABLE shop.parts_more PARTITION OF shop.parts FOR VALUES FROM (20) TO (30)",
    "ALTER TABLE shop.visits OWNER TO CURRENT_USER",
    "ALTER TABLE shop.visits ALTER at SET NOT NULL",
    "ALTER TYPE shop.mood ADD VALUE 'furious' BEFORE 'sad'",
    "ALTER TYPE shop.mood ADD VALUE 'calm'; ALTER TYPE shop.mood RENAME VALUE 'calm' TO 'still'",
    # What a value shows of a row of another table, or of another type, is its fields, without their names.
    "ALTER TYPE shop.feeling RENAME ATTRIBUTE since TO began",
    "ALTER TABLE elsewhere.places ALTER town SET NOT NULL; GRANT SELECT (town) ON elsewhere.places TO public",
    "ALTER TABLE elsewhere.places RENAME town TO city",
    # What every read and every change shows during a run.
    "ALTER TABLE shop.orders RENAME at TO a; ALTER TABLE shop.orders RENAME a TO at",
    "ALTER TABLE shop.parts_one REPLICA IDENTITY FULL; ALTER TABLE shop.parts_one REPLICA IDENTITY DEFAULT",
    "ALTER TABLE shop.orders ADD passing int; ALTER TABLE shop.orders DROP passing",
)
"""Where there is more than one statement, the state in between does not matter here."""


def test_what_changes_no_row_and_no_image_does_not_stop_a_run(shop: Connection) -> None:
    tables = read_tables(shop, [ORDERS, PARTS, VISITS])
    for statement in HARMLESS:
        for one in statement.split("; "):
            query(shop, one)
        check_unchanged(shop, tables)


HARMFUL = {
    "ALTER TABLE shop.orders ADD more int": "columns have changed (more)",
    "ALTER TABLE shop.orders RENAME at TO moment": "columns have changed (at, moment)",
    "ALTER TABLE shop.orders DROP span, ADD span int4range": "columns have changed (span)",
    "ALTER TABLE shop.orders ALTER at DROP NOT NULL": "columns have changed (at)",
    "ALTER TYPE shop.mood RENAME VALUE 'sad' TO 'blue'": "columns have changed (feeling, moods)",
    "ALTER TYPE shop.mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE shop.mood RENAME VALUE 'x' TO 'sad'": (
        "columns have changed (feeling, moods)"
    ),
    "ALTER TYPE shop.mood ADD VALUE 'calm'; ALTER TYPE shop.mood RENAME VALUE 'sad' TO 'blue'": "(feeling, moods)",
    "ALTER TYPE shop.feeling ADD ATTRIBUTE x int; ALTER TYPE shop.feeling DROP ATTRIBUTE x": "changed (feeling)",
    "ALTER TABLE elsewhere.places ADD x int": "columns have changed (place)",
    "ALTER TABLE elsewhere.places DROP town": "columns have changed (place)",
    "ALTER TABLE shop.orders DROP CONSTRAINT orders_pkey": "its columns have changed|its key has changed",
    "ALTER TABLE shop.orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)": "has changed|have changed",
    "VACUUM FULL shop.orders": "was rewritten or truncated",
    "TRUNCATE shop.parts": "was rewritten or truncated",
    "ALTER TABLE shop.visits REPLICA IDENTITY FULL": "its replica identity has changed",
    "CREATE TABLE shop.later_visits () INHERITS (shop.visits)": "other tables inherit from it now",
    "ALTER TABLE shop.parts RENAME id TO i; ALTER TABLE shop.parts RENAME code TO id;"
    "ALTER TABLE shop.parts RENAME i TO code": "columns have changed",
    "ALTER TABLE shop.parts_low RENAME TO parts_lower": "was altered",
    "ALTER TABLE shop.parts_one REPLICA IDENTITY FULL": "the replica identity of shop.parts_one has changed",
    "ALTER TABLE shop.parts DETACH PARTITION shop.parts_low": "partitions were attached or detached",
    "ALTER TABLE shop.parts DETACH PARTITION shop.parts_low;"
    "ALTER TABLE shop.parts ATTACH PARTITION shop.parts_low FOR VALUES FROM (0) TO (10)": "attached or detached",
    "ALTER TABLE shop.visits RENAME TO v; CREATE TABLE shop.visits (at date)": "another table now has the name",
}


@pytest.mark.parametrize(("statements", "why"), HARMFUL.items())
def test_what_could_make_the_copy_wrong_is_noticed_also_when_it_was_taken_back(
    shop: Connection, statements: str, why: str
) -> None:
    tables = read_tables(shop, [ORDERS, PARTS, VISITS])
    check_unchanged(shop, tables)
    for statement in statements.split(";"):
        query(shop, statement)
    with pytest.raises(SchemaChanged) as stopped:
        check_unchanged(shop, tables)
    said = str(stopped.value).replace('"', "")
    assert any(words in said for words in why.split("|"))
    check_unchanged(shop, read_tables(shop, [ORDERS, PARTS, VISITS]))


def test_names_of_objects_inside_of_other_types(shop: Connection) -> None:
    """Their text changes with the object's name, wherever in a value they are."""
    for statement in (
        "CREATE TYPE shop.inner_part AS (a int, r regclass)",
        "CREATE DOMAIN shop.watched AS shop.inner_part[]",
        "CREATE TABLE shop.named (a regclass, b regrole[], c shop.inner_part, d shop.inner_part[], e shop.watched)",
    ):
        query(shop, statement)
    table = read_tables(shop, [TableName("shop", "named")])[0]
    assert [unmapped(column) is not None for column in table.columns] == [True] * 5
    orders = read_tables(shop, [ORDERS])[0]
    assert [column.name for column in orders.columns if unmapped(column)] == []


def test_labels_that_come_before_the_reads_end_where_the_copy_is_exact_there(shop: Connection) -> None:
    """One that is there by then may have got another name when it is read."""
    (table,) = read_tables(shop, [ORDERS])
    exact_later = replace(table, details={**table.details, AT_UPPER: True})
    query(shop, "ALTER TYPE shop.mood ADD VALUE 'calm'")
    check_unchanged(shop, [table])
    with pytest.raises(SchemaChanged, match="moods"):
        check_unchanged(shop, [exact_later])


def test_labels_that_are_added_to_a_key_and_renamed_before_their_rows_are_read(shop: Connection) -> None:
    """The log has such a row under one key, and the reads have it under another."""
    query(shop, "CREATE TABLE shop.kept (mood shop.mood PRIMARY KEY, note text)")
    tables = read_tables(shop, [TableName("shop", "kept")])
    query(shop, "ALTER TYPE shop.mood ADD VALUE 'calm'")
    query(shop, "INSERT INTO shop.kept VALUES ('calm')")
    query(shop, "ALTER TYPE shop.mood RENAME VALUE 'calm' TO 'still'")
    with pytest.raises(SchemaChanged, match="mood"):
        check_unchanged(shop, tables)


def test_labels_that_are_added_to_rows_without_a_key_and_renamed_before_they_are_read(shop: Connection) -> None:
    """The log has a row that differs from the one that is read, and a condition is true of one of them only."""
    query(shop, "CREATE TABLE shop.kept (mood shop.mood, note text)")
    (table,) = read_tables(shop, [TableName("shop", "kept")])
    query(shop, "ALTER TYPE shop.mood ADD VALUE 'calm'")
    query(shop, "INSERT INTO shop.kept VALUES ('calm')")
    query(shop, "ALTER TYPE shop.mood RENAME VALUE 'calm' TO 'still'")
    for where in (None, "mood <> 'calm'"):
        with pytest.raises(SchemaChanged, match="mood"):
            check_unchanged(shop, [replace(table, selection=selection_of(where, None))])
    # A column that is not read identifies nothing.
    check_unchanged(shop, [replace(table, selection=selection_of(None, ["note"]))])


def test_a_column_of_a_type_that_is_altered_keeps_the_types_of_its_fields(shop: Connection) -> None:
    """Only the server sees to it: a type that was another one for a while leaves the catalog as it was."""
    for statement in (
        "CREATE TYPE shop.stay AS (since timestamptz, note varchar(5))",
        "CREATE DOMAIN shop.stays AS shop.stay[]",
        "CREATE TABLE elsewhere.parent (id int, since timestamptz) PARTITION BY LIST (id)",
        "CREATE TABLE shop.guests (id int PRIMARY KEY, stays shop.stays, parent elsewhere.parent[])",
        "SET TIME ZONE 'UTC'",
    ):
        query(shop, statement)
    for statement in (
        "ALTER TYPE shop.stay ALTER ATTRIBUTE since TYPE timestamp CASCADE",
        "ALTER TYPE shop.stay ALTER ATTRIBUTE note TYPE text",
        "ALTER TABLE elsewhere.parent ALTER since TYPE timestamp",
        "ALTER TABLE elsewhere.places ALTER town TYPE varchar",
        "ALTER TABLE elsewhere.places ADD x int DEFAULT 1",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"uses it|uses its row type"), shop.transaction():
            query(shop, statement)


AT_THE_POSITION = {
    "ALTER TYPE shop.mood ADD VALUE 'calm'": "columns have changed (feeling, moods)",
    "ALTER TABLE shop.orders RENAME at TO a; ALTER TABLE shop.orders RENAME a TO at": "columns have changed (at)",
    "ALTER TABLE shop.parts_one REPLICA IDENTITY FULL; ALTER TABLE shop.parts_one REPLICA IDENTITY DEFAULT": (
        "shop.parts_one was altered"
    ),
    "CREATE TABLE shop.parts_more PARTITION OF shop.parts FOR VALUES FROM (20) TO (30)": "attached or detached",
}


@pytest.mark.parametrize(("statements", "why"), AT_THE_POSITION.items())
def test_while_the_position_is_fixed_nothing_at_all_may_happen(shop: Connection, statements: str, why: str) -> None:
    before = read_tables(shop, [ORDERS, PARTS])
    for statement in statements.split(";"):
        query(shop, statement)
    now = read_tables(shop, [ORDERS, PARTS])
    assert why in "".join(map(difference, before, now)).replace('"', "")


AS_ROOT = {
    "CREATE TABLE shop.parts_more PARTITION OF shop.parts FOR VALUES FROM (20) TO (30)": "attached or detached",
    "ALTER TABLE shop.parts_one REPLICA IDENTITY FULL; ALTER TABLE shop.parts_one REPLICA IDENTITY DEFAULT": (
        "parts_one.* was altered"
    ),
}


@pytest.mark.parametrize(("statements", "why"), AS_ROOT.items())
def test_where_the_log_tells_of_the_root_what_it_does_not_tell_of_partitions_is_noticed(
    shop: Connection, statements: str, why: str
) -> None:
    query(shop, "CREATE PUBLICATION told FOR TABLE shop.parts WITH (publish_via_partition_root = true)")
    tables = read_tables(shop, [PARTS], "told")
    for statement in statements.split(";"):
        query(shop, statement)
    with pytest.raises(SchemaChanged, match=why):
        check_unchanged(shop, tables)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize(
    ("statements", "why"),
    {
        "ALTER TABLE shop.swapped RENAME a TO x; ALTER TABLE shop.swapped RENAME b TO a;"
        "ALTER TABLE shop.swapped RENAME x TO b": "other names for a while",
        "ALTER TABLE shop.swapped ADD more int": "other names for a while",
        "ALTER TABLE shop.swapped ALTER a TYPE oid": "other types for a while",
        "ALTER TABLE shop.swapped RENAME TO other; CREATE TABLE shop.swapped (LIKE shop.other)": "another table",
        "VACUUM FULL shop.swapped": "was rewritten",
    }.items(),
)
def test_a_read_goes_by_the_names_and_types_that_were_recorded(
    shop: Connection, postgres: PostgresServer, database: str, isolation: str, statements: str, why: str
) -> None:
    """Also in a transaction that sees an older state of the catalog than its reads use."""
    query(shop, "CREATE TABLE shop.swapped (id int PRIMARY KEY, gone int, a int, b int)")
    query(shop, "ALTER TABLE shop.swapped DROP gone")
    (table,) = read_tables(shop, [TableName("shop", "swapped")])
    (leaf,) = leaves(table)
    with session(settings_of(postgres, database)) as reader:
        query(reader, f"BEGIN READ ONLY ISOLATION LEVEL {isolation}")
        query(reader, "SELECT 1")
        for statement in statements.split(";"):
            query(shop, statement)
        query(reader, "SELECT a, b FROM shop.swapped")
        with pytest.raises(SchemaChanged, match=why):
            check_in_place(partial(query, reader), table, leaf)
    source = PostgresSource(settings_of(postgres, database))
    (chunk,) = source.plan_chunks(table, 100)
    with source.reader(table, "watermark", LockPolicy()) as chunks, pytest.raises(SchemaChanged, match=why):
        list(chunks.read(chunk))
    (now,) = read_tables(shop, [TableName("shop", "swapped")])
    check_in_place(partial(query, shop), now, leaves(now)[0], locked=False)
