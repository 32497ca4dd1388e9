"""Which schema changes since a copy are carried, and what the log of such a night becomes.

The oracle is the server: rows of the copy and images of the log, carried to the present table, must give the rows that
the server returns at the end. Every case has a table of its own, and all tables are altered in one night.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from airflow_provider_cdc.core.tables.table import Evolution, TableName
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.standing_record import alone, store
from tests.conftest import PostgresFactory
from tests.consistency.postgres.servers import ENDS
from tests.seeds import some
from tests.sources.postgres.standing import RUN_ID, Kept
from tests.sources.postgres.steps.schema_nights import after_the_night, started

COLUMNS = (
    "a int, b varchar(20), d varchar(20), c numeric(6, 2) NOT NULL DEFAULT 0, e text, u bigint, "
    "ts timestamp(3) DEFAULT '2026-01-02 03:04:05.678'"
)


@pytest.fixture(params=some(*ENDS))
def each(request: pytest.FixtureRequest, postgres_factory: PostgresFactory) -> Iterator[Kept]:
    """The past of a database, on the oldest and on the newest server."""
    server = postgres_factory(None, request.param)
    server.query("CREATE DATABASE evolving")
    kept = Kept(server, "evolving")
    yield kept
    kept.forget()


CARRIED: Mapping[str, list[str]] = {
    "added": ["ALTER TABLE {t} ADD n int NOT NULL DEFAULT 7", "ALTER TABLE {t} ALTER n SET DEFAULT 8"],
    "nulls": ["ALTER TABLE {t} ADD n jsonb", "ALTER TABLE {t} ALTER n SET DEFAULT '{{}}'"],
    "texts": [
        """ALTER TABLE {t} ADD n text DEFAULT E'a "b", \\\\ {{c}} é'""",
        "ALTER TABLE {t} ADD m char(3) DEFAULT '', ADD k text DEFAULT 'NULL'",
    ],
    "values": [
        "ALTER TABLE {t} ADD n numeric(11, 3) DEFAULT -12.5, ADD m date DEFAULT '2026-02-28', ADD k bytea DEFAULT 'x'",
        "ALTER TABLE {t} ADD l int[] DEFAULT '{{1,NULL}}', ADD o float8 DEFAULT 'NaN', ADD p timestamptz DEFAULT now()",
    ],
    "dropped": ["ALTER TABLE {t} DROP a"],
    "renamed": ["ALTER TABLE {t} RENAME a TO z", "ALTER TABLE {t} RENAME b TO a"],
    "exchanged": [
        "ALTER TABLE {t} RENAME b TO x",
        "ALTER TABLE {t} RENAME d TO b",
        "ALTER TABLE {t} RENAME x TO d",
    ],
    "anew": ["ALTER TABLE {t} DROP d", "ALTER TABLE {t} ADD d varchar(20)"],
    "at_once": ["ALTER TABLE {t} DROP d, ADD d varchar(20) DEFAULT 'new'"],
    "taken_over": ["ALTER TABLE {t} DROP e, ADD n text", "ALTER TABLE {t} RENAME n TO e"],
    "wider": [
        "ALTER TABLE {t} ALTER b TYPE varchar(300), ALTER d TYPE text, ALTER c TYPE numeric(12, 2)",
        "ALTER TABLE {t} ALTER ts TYPE timestamp",
    ],
    "loosened": ["ALTER TABLE {t} ALTER c DROP NOT NULL"],
    "three": [
        "ALTER TABLE {t} ADD n int DEFAULT 1",
        "ALTER TABLE {t} DROP a",
        "ALTER TABLE {t} ADD m int DEFAULT 2",
        "ALTER TABLE {t} DROP d",
    ],
    "moved_values": ["BEGIN; ALTER TABLE {t} ADD n int; UPDATE {t} SET n = a; ALTER TABLE {t} DROP a; COMMIT"],
    "dropped_within": [
        "BEGIN; UPDATE {t} SET u = 5 WHERE id = 2; ALTER TABLE {t} DROP a; UPDATE {t} SET u = 6 WHERE id = 2; COMMIT"
    ],
    "in_one": ["BEGIN; ALTER TABLE {t} DROP d; ALTER TABLE {t} ADD d text; UPDATE {t} SET d = 'new'; COMMIT"],
    "savepoint": ["BEGIN; SAVEPOINT s; ALTER TABLE {t} DROP d; ALTER TABLE {t} ADD d text; RELEASE s; COMMIT"],
    "tuned": ["ALTER TABLE {t} ALTER a SET STATISTICS 7, ADD CHECK (a > -9)", "GRANT SELECT ON {t} TO pg_monitor"],
}


LOSE_COLUMNS = {t for t, statements in CARRIED.items() if any(re.search(r" DROP \w( |,|$)", one) for one in statements)}


@pytest.mark.slow
def test_rows_and_images_become_rows_of_the_present_table(each: Kept) -> None:
    names = {f"{name}{number}": case for name, case in CARRIED.items() for number in (0, 1)}
    long = "md5(random()::text) || repeat(md5(random()::text), 300)"
    night = started(
        each,
        [*names],
        *(f"CREATE TABLE {t} (id int{'' if t.endswith('1') else ' PRIMARY KEY'}, {COLUMNS})" for t in names),
        # Values of this column stay outside of the row, so an UPDATE of other columns does not log them again.
        *(f"ALTER TABLE {t} ALTER e SET STORAGE EXTERNAL" for t in names),
        *(
            f"INSERT INTO {t} (id, a, b, d, c, e, u) VALUES (1, -1, 'one', 'I', 1.5, {long}, 4000000000), "
            f"(2, NULL, NULL, 'II', 2, 'two', 1), (3, 3, 'x', '', 3, {long}, 3), (5, -5, 'five', 'V', 5, NULL, 0), "
            "(6, 6, '', NULL, 6, 'six', NULL)"
            for t in names
        ),
    )
    bases = {table.name: (table, night.rows(table)) for table in night.point.tables}
    for t, statements in names.items():
        night.do(f"UPDATE {t} SET u = u + 1 WHERE id = 1", f"INSERT INTO {t} (id, c, u) VALUES (4, 4, 4)")
        for statement in statements:
            night.do(statement.format(t=t), f"UPDATE {t} SET u = u + 10 WHERE id = 2")
            night.do(f"DELETE FROM {t} WHERE id = 3", f"INSERT INTO {t} (id, c, u) VALUES (3, 3, 30)")
        night.do(f"UPDATE {t} SET u = 77 WHERE id IN (1, 3, 4)", f"DELETE FROM {t} WHERE id = 5", "VACUUM")
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions)
    assert refused == {}
    point = night.next(evolutions)
    present = {table.name: table for table in point.tables}
    tables = [replace(present[name], eras=evolutions[name].eras) for name in bases]
    rolled = after_the_night(night, point, tables, {name: rows for name, (_, rows) in bases.items()})
    for table in tables:
        assert rolled[table.name] == Counter(night.rows(table)), table.name
        assert bool(table.eras) == (not table.name.name.startswith("tuned")), table.name
    # A table with a change feed is not carried, because the feed has no entry for a row that such a statement changed.
    assert night.asked(None).keys() == names.keys()


REFUSED: Mapping[str, tuple[list[str], str]] = {
    "volatile": (["ALTER TABLE {t} ADD n float8 DEFAULT random()"], "was rewritten"),
    "numbered": (["ALTER TABLE {t} ADD n serial"], "was rewritten"),
    "constrained": (["ALTER TABLE {t} ADD n positive DEFAULT 1"], "was rewritten"),
    "rewritten": (["ALTER TABLE {t} ADD n int DEFAULT 1", "VACUUM FULL {t}"], "was rewritten"),
    "converted": (["ALTER TABLE {t} ALTER a TYPE bigint"], "was rewritten"),
    "computed": (["ALTER TABLE {t} ALTER b TYPE varchar(30) USING upper(b)"], "was rewritten"),
    "truncated": (["ALTER TABLE {t} ADD n int", "TRUNCATE {t}"], "was rewritten"),
    "made": (["ALTER TABLE {t} ADD n int GENERATED ALWAYS AS (a + 1) STORED"], "was rewritten"),
    "made_anew": (
        ["DROP TABLE {t}", "CREATE TABLE {t} (id int PRIMARY KEY)", "ALTER TABLE {t} REPLICA IDENTITY FULL"],
        "name of this table",
    ),
    "narrower": (["ALTER TABLE {t} ALTER b TYPE varchar(5)"], "was rewritten|from character varying"),
    "other_text": (["ALTER TABLE {t} ALTER z TYPE timestamptz"], "from timestamp without"),
    "unbounded": (["ALTER TABLE {t} ALTER c TYPE numeric"], "from numeric"),
    "too_wide": (["ALTER TABLE {t} ALTER c TYPE numeric(40, 2)"], "from numeric"),
    "strict": (["ALTER TABLE {t} ALTER a SET NOT NULL"], "became NOT NULL"),
    "backfilled": (
        ["ALTER TABLE {t} ADD n int", "UPDATE {t} SET n = 1", "ALTER TABLE {t} ALTER n SET NOT NULL"],
        "is NOT NULL, and the catalog has no value",
    ),
    "dropped_again": (["ALTER TABLE {t} ADD n int", "ALTER TABLE {t} DROP n"], "added and dropped again"),
    "dropped_one_by_one": (
        ["ALTER TABLE {t} DROP a", "UPDATE {t} SET id = 2", "ALTER TABLE {t} DROP b"],
        "the log does not show when a, b was dropped",
    ),
    "last": (
        ["ALTER TABLE {t} DROP z", "ALTER TABLE {t} ADD z timestamp", "UPDATE {t} SET a = 5"],
        "when z was dropped",
    ),
    "between": (
        [
            "ALTER TABLE {t} ALTER b TYPE varchar(30)",
            "UPDATE {t} SET b = 'thirty'",
            "ALTER TABLE {t} ALTER b TYPE varchar(40)",
        ],
        "had a type that is neither",
    ),
    "key_name": (["ALTER TABLE {t} RENAME id TO n"], "its key has changed"),
    "key_type": (["ALTER TABLE {t} ALTER id TYPE bigint"], "was rewritten"),
    "key_anew": (["ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id)"], "its key has changed"),
    "identity": (
        [
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
            "UPDATE {t} SET a = 5",
            "ALTER TABLE {t} REPLICA IDENTITY FULL, ADD n int",
        ],
        "replica identity",
    ),
    "unpublished": (
        [
            "ALTER PUBLICATION {slot} DROP TABLE {t}",
            "UPDATE {t} SET a = 5",
            "ALTER PUBLICATION {slot} ADD TABLE {t}",
            "ALTER TABLE {t} ADD n int",
        ],
        "publication",
    ),
    "partly": (
        [
            "ALTER PUBLICATION {slot} DROP TABLE {t}",
            "ALTER PUBLICATION {slot} ADD TABLE {t} (id)",
            "INSERT INTO {t} VALUES (2, 2)",
            "ALTER TABLE {t} ADD n int",
        ],
        "publication",
    ),
    "moved": (
        ["ALTER TABLE {t} SET SCHEMA other", "ALTER TABLE other.{t} SET SCHEMA public", "ALTER TABLE {t} ADD n int"],
        "its schema",
    ),
    "child": (["ALTER TABLE {t} ADD n int", "CREATE TABLE {t}_child () INHERITS ({t})"], "child tables"),
    "labels": (["ALTER TABLE {t} ADD n int", "ALTER TYPE mood RENAME VALUE 'b' TO 'c'"], "a label of its enums"),
    "own_labels": (["CREATE TYPE own AS ENUM ('x')", "ALTER TABLE {t} ADD n own DEFAULT 'x'"], "a label of its enums"),
    "field": (["ALTER TYPE pair ADD ATTRIBUTE z int"], "altered"),
    "new_field": (
        ["ALTER TABLE {t} ADD n fields[] DEFAULT '{{\"(1,2)\"}}'", "ALTER TYPE fields ADD ATTRIBUTE z int"],
        "the fields of the composite type of n",
    ),
    "dropped_field": (
        ['ALTER TABLE {t} ADD n ranges DEFAULT \'["(1,2)","(3,4)"]\'', "ALTER TYPE ends DROP ATTRIBUTE y"],
        "the fields of the composite type of n",
    ),
    "endless": (["ALTER TABLE {t} ADD n date DEFAULT 'infinity'"], "the lake has no value"),
}


@pytest.mark.slow
def test_changes_that_need_a_full_read(kept: Kept) -> None:
    night = started(
        kept,
        [*REFUSED],
        "CREATE SCHEMA other; CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TYPE pair AS (x int, y int)",
        "CREATE TYPE fields AS (x int, y int); CREATE TYPE ends AS (x int, y int)",
        "CREATE TYPE ranges AS RANGE (subtype = ends)",
        *(
            f"CREATE TABLE {t} (id int PRIMARY KEY, a int, b varchar(20), c numeric(6, 2), z timestamp"
            f"{', m mood' if t == 'labels' else ''}{', m pair' if t == 'field' else ''})"
            for t in REFUSED
        ),
        *(f"INSERT INTO {t} VALUES (1, 1, 'one', 1)" for t in REFUSED),
    )
    for t, (statements, _) in REFUSED.items():
        night.do(*(statement.format(t=t, slot=kept.name) for statement in statements))
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions)
    wrong = {
        t: refused.get(t, "not refused")
        for t, (_, why) in REFUSED.items()
        if not re.search(why, refused.get(t, "not refused"))
    }
    assert wrong == {}
    assert evolutions == {}


@pytest.mark.slow
def test_positions_around_a_schema_change(kept: Kept) -> None:
    """The run may be exact before its preflight, but not before a schema change that its columns have."""
    tables = ("stocks", "late", "again")
    night = started(
        kept,
        ["early", *tables],
        "CREATE TABLE early (id int PRIMARY KEY)",
        "CREATE TYPE mood AS ENUM ('a', 'b')",
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, a int, m mood)" for t in tables),
        *(f"INSERT INTO {t} VALUES (1, 1, 'a'), (2, 2, 'b')" for t in tables),
    )
    bases = {table.name: night.rows(table) for table in night.point.tables}
    # An earlier version of the provider recorded the tables.
    with session(kept.source.settings) as connection:
        alone(connection, kept.name, 10)
        record = kept.record
        unframed = {name: replace(one, frame="", frame_position="") for name, one in record.tables.items()}
        store(connection, kept.name, replace(record, tables=unframed))
    night.do("ALTER TABLE early ADD n int")
    assert "may have changed, too" in night.asked({})["early"]
    kept.keep(*tables)
    assert kept.record.tables == {**unframed, **{name: record.tables[name] for name in unframed if "early" not in name}}
    for t in tables:
        night.do(f"UPDATE {t} SET a = 10 WHERE id = 1", f"ALTER TABLE {t} DROP a, ADD n int DEFAULT 5")
        night.do(f"UPDATE {t} SET n = 6 WHERE id = 1", f"INSERT INTO {t} VALUES (3, 'b', 3)")
    # The server logs which transactions are running.
    night.do("CHECKPOINT")
    wanted = kept.here()
    night.do("UPDATE stocks SET n = 100", "DELETE FROM late", "ALTER TABLE late ADD o int")
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions, to=wanted)
    assert refused.keys() == {"early", "late"}
    assert "changed after the position" in refused["late"]
    # The next run finds the tables altered, and fixes its position later.
    evolutions = {}
    assert night.asked(evolutions).keys() == {"early"}
    point = night.next(evolutions)
    night.do("ALTER TABLE stocks ADD after int DEFAULT 5", "UPDATE stocks SET n = 0", "ALTER TABLE again DROP m")
    tables_then = [replace(table, eras=evolutions[table.name].eras) for table in point.tables]
    rolled = after_the_night(night, point, tables_then, bases)
    assert rolled[TableName("public", "stocks")] == Counter([(1, "a", 100), (2, "b", 100), (3, "b", 100)])
    assert rolled[TableName("public", "again")] == Counter([(1, "a", 6), (2, "b", 5), (3, "b", 3)])
    kept.source.release(RUN_ID)
    # A table that is altered between preflight and the position stops the run.
    kept.keep(*tables)
    with pytest.raises(PreflightError, match="altered after the task"):
        night.next(evolutions)


@pytest.mark.slow
def test_a_transaction_that_is_open_during_a_schema_change(kept: Kept) -> None:
    """It wrote another table before, and gave the lock of this table back with a savepoint."""
    tables = ("first", "second")
    night = started(
        kept,
        tables,
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, a int, b int)" for t in tables),
        *(f"INSERT INTO {t} VALUES (1, 1, 1), (2, 2, 2)" for t in tables),
    )
    bases = {table.name: night.rows(table) for table in night.point.tables}
    with kept.server.connect(database=kept.database, autocommit=False) as writer:
        writer.execute("UPDATE first SET a = 10 WHERE id = 1")
        writer.execute("SAVEPOINT s")
        writer.execute("UPDATE second SET a = 11")
        writer.execute("ROLLBACK TO s")
        night.do("UPDATE second SET b = 20 WHERE id = 2", "ALTER TABLE second DROP a, ADD n int DEFAULT 5")
        writer.execute("UPDATE second SET n = 6 WHERE id = 1")
        writer.execute("INSERT INTO second VALUES (3, 3, 3)")
        writer.commit()
    night.do("ALTER TABLE first DROP a, ADD n int DEFAULT 7", "UPDATE second SET b = 21 WHERE id = 2")
    evolutions: dict[TableName, Evolution] = {}
    assert night.asked(evolutions) == {}
    point = night.next(evolutions)
    present = [replace(table, eras=evolutions[table.name].eras) for table in point.tables]
    rolled = after_the_night(night, point, present, bases)
    for table in present:
        assert rolled[table.name] == Counter(night.rows(table)), table.name
