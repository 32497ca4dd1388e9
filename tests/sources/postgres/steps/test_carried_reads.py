"""Which finished reads are carried over schema changes, and what their rows become.

The oracle is the server: the rows that were read, and the images of the log, must give the rows that the server returns
at the position to which the run moves. Every case has a table of its own, and all tables are altered in one run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.ledger import Link, reaching
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.tables.table import Column, Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, SchemaChanged
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import AT_UPPER
from airflow_provider_cdc.sources.postgres.steps import schema_changes
from tests.conftest import PostgresFactory
from tests.consistency.postgres.servers import ENDS
from tests.seeds import some
from tests.sources.postgres.standing import RUN_ID, Kept
from tests.sources.postgres.steps.schema_nights import Night, Row, decoded, plain
from tests.sources.postgres.steps.test_schema_changes import CARRIED, COLUMNS, LOSE_COLUMNS, REFUSED


@pytest.fixture(params=some(*ENDS))
def each(request: pytest.FixtureRequest, postgres_factory: PostgresFactory) -> Iterator[Kept]:
    """A database on the oldest and on the newest server."""
    server = postgres_factory(None, request.param)
    server.query("DROP DATABASE IF EXISTS carrying")
    server.query("CREATE DATABASE carrying")
    kept = Kept(server, "carrying")
    yield kept
    kept.source.release(RUN_ID)


@dataclass
class Reading(Night):
    """A run that has read some tables."""

    ends: dict[TableName, LogEnd] = field(default_factory=dict)
    read: dict[TableName, list[Row]] = field(default_factory=dict)

    def end(self) -> None:
        """Read all rows. The read ends now."""
        self.read = {table.name: self.rows(table) for table in self.point.tables}
        self.ends = self.kept.source.ends_of_reads(self.point.tables)

    def move(self) -> InitialPoint:
        names = [table.name.name for table in self.point.tables]
        return self.kept.source.record_initial(self.kept.plans(*names), self.kept.options.lock, RUN_ID)

    def carried(self, point: InitialPoint, recorded: LogEnd | None = None, **others: Any) -> dict[str, Evolution | str]:
        """The evolution of each table, or the reason why it is read again."""
        found: dict[str, Evolution | str] = {}
        for table, now in zip(self.point.tables, point.tables, strict=True):
            given: dict[str, Any] = {
                "table": table,
                "now": now,
                "ended": self.ends.get(table.name, LogEnd("0/1234567")),
            } | others
            identity = self.point.identity
            if recorded is not None:
                identity = reaching(identity, Link(1, "", LogEnd(""), recorded, str(recorded), "", 0, 1, ""))
            try:
                found[table.name.name] = self.kept.source.carry_read(
                    identity, self.point.position, end=point.position, recorded=recorded, **given
                )
            except CdcError as error:
                found[table.name.name] = error.message
        return found

    def why(self, point: InitialPoint, recorded: LogEnd | None = None, **others: Any) -> str:
        """Why the only table is read again."""
        return str(self.carried(point, recorded, **others)["t"])

    def present(self, point: InitialPoint, carried: dict[str, Evolution | str]) -> list[Table]:
        return [
            replace(table, eras=evolution.eras)
            for table in point.tables
            if isinstance(evolution := carried[table.name.name], Evolution)
        ]

    def rows_carried(self, table: Table) -> dict[Any, Row]:
        """The rows that were read, as rows of the present table, by their keys."""
        rows = self.read[table.name]
        if table.eras:
            new = self.kept.source.new_columns(table, table.eras[0])
            constants = {name: plain(new[name][0].as_py()) for name in new.schema.names}
            places = {column.name: place for place, column in enumerate(table.eras[0].columns)}
            rows = [
                tuple(row[places[one.was]] if one.was else constants[one.name] for one in table.eras[0].fields)
                for row in rows
            ]
        return {row[0]: row for row in rows}

    def apply(
        self,
        rows: dict[TableName, dict[Any, Row]],
        tables: Sequence[Table],
        segments: Sequence[LogSegment],
        columns: dict[TableName, tuple[Column, ...]] | None = None,
    ) -> None:
        """Apply the log to rows. ``columns``: the log is read, and its images are recorded, with these columns."""
        source = self.kept.source
        then = [replace(table, columns=columns[table.name], eras=()) if columns else table for table in tables]
        tracked = [TrackedTable(index, table, forward=True) for index, table in enumerate(then)]
        for segment in segments:
            with source.read_segment(segment, self.point.position, tracked) as reader:
                for batch in reader:
                    table = tables[batch["table"][0].as_py()]
                    images = [batch[name] for name in ("before", "after")]
                    if columns:
                        images = [source.carry_images(table, columns[table.name], one) for one in images]
                    befores, afters = (decoded(self, table, one) for one in images)
                    for before, after in zip(befores, afters, strict=True):
                        changed = after or before
                        assert changed is not None
                        rows[table.name].pop(changed[0], None)
                        if after is not None:
                            rows[table.name][changed[0]] = after


def begun(kept: Kept, tables: Sequence[str], *statements: str) -> Reading:
    kept.run(*statements, *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in tables))
    return Reading(kept, kept.source.record_initial(kept.plans(*tables), kept.options.lock, RUN_ID))


def altered(kept: Kept) -> Reading:
    """A run whose tables were read, altered in all ways that are carried, and changed all the time."""
    long = "md5(random()::text) || repeat(md5(random()::text), 300)"
    run = begun(
        kept,
        [*CARRIED],
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, gone int, {COLUMNS}, lost int)" for t in CARRIED),
        *(f"ALTER TABLE {t} DROP gone, DROP lost, ALTER e SET STORAGE EXTERNAL" for t in CARRIED),
        *(
            f"INSERT INTO {t} (id, a, b, d, c, e, u) VALUES (1, -1, 'one', 'I', 1.5, {long}, 4000000000), "
            f"(2, NULL, NULL, 'II', 2, 'two', 1), (3, 3, 'x', '', 3, {long}, 3), (5, -5, 'five', 'V', 5, NULL, 0), "
            "(6, 6, '', NULL, 6, 'six', NULL), (7, 7, 'seven', 'VII', 7, 'seven', 7)"
            for t in CARRIED
        ),
    )
    for t in CARRIED:
        run.do(f"UPDATE {t} SET u = u + 1 WHERE id = 1", f"INSERT INTO {t} (id, c, u) VALUES (4, 4, 4)")
    return run


def alter(run: Reading) -> None:
    for t, statements in CARRIED.items():
        for statement in statements:
            run.do(statement.format(t=t), f"UPDATE {t} SET u = u + 10 WHERE id = 2")
            run.do(f"DELETE FROM {t} WHERE id = 3", f"INSERT INTO {t} (id, c, u) VALUES (3, 3, 30)")
        run.do(f"UPDATE {t} SET u = 77 WHERE id IN (1, 3, 4)", f"DELETE FROM {t} WHERE id = 5", "VACUUM")


@pytest.mark.slow
@pytest.mark.parametrize("recorded", some(False, True))
def test_rows_and_images_become_rows_of_the_altered_table(each: Kept, recorded: bool) -> None:
    """Also if the first part of the log was recorded, and the slot no longer has it."""
    run, source = altered(each), each.source
    run.end()
    for t in CARRIED:
        # The read has seen changes that are in the log, too. The log has more changes before the table is altered.
        run.do(f"UPDATE {t} SET e = e || 'x', a = 8 WHERE id IN (1, 7)", f"DELETE FROM {t} WHERE id = 6")
    piece = LogEnd(each.here())
    alter(run)
    start, point = run.point.position, run.move()
    wanted = {table.name: run.rows(table) for table in point.tables}
    run.do(*(f"UPDATE {t} SET u = 5" for t in CARRIED))
    identity = run.point.identity
    of_reads = Start(start, identity)
    first = source.segments(of_reads, AT_START, piece) if recorded else []
    carried = run.carried(point, piece if recorded else None)
    refused = {t: why for t, why in carried.items() if isinstance(why, str)}
    assert refused.keys() == (LOSE_COLUMNS if recorded else set()), refused
    tables = run.present(point, carried)
    rows = {table.name: run.rows_carried(table) for table in tables}
    if recorded:
        run.apply(rows, tables, first, {table.name: table.columns for table in run.point.tables})
        source.acknowledge(identity, piece)
        assert run.carried(point, piece) == carried
        rest = source.segments(of_reads, piece, source.place_of(point.position), number=1)
    else:
        rest = source.segments(of_reads, AT_START, source.place_of(point.position), tables)
    run.apply(rows, tables, rest)
    for table in tables:
        assert Counter(rows[table.name].values()) == Counter(wanted[table.name]), table.name


IN_A_RUN = {
    "identity": "replica identity",
    "moved": "another schema",
    "labels": "the type public.mood",
    "key_type": "its key has changed",
    "own_labels": "a label of the enum",
    "own_labels_renamed": "a label of the enum",
    "made_anew": "another table",
    "keyless": "has no key",
    "parted": "partitioned",
}


@pytest.mark.slow
def test_changes_after_which_a_table_is_read_again(each: Kept) -> None:
    cases = {t: case for t, case in REFUSED.items() if t not in ("unpublished", "partly", "child")}
    cases["own_labels_renamed"] = (
        [
            "CREATE TYPE hue AS ENUM ('x')",
            "ALTER TABLE {t} ADD n hue",
            "UPDATE {t} SET n = 'x'",
            "ALTER TYPE hue RENAME VALUE 'x' TO 'y'",
        ],
        "",
    )
    cases["keyless"] = (["ALTER TABLE {t} ADD n int"], "")
    cases["parted"] = (["ALTER TABLE {t} ADD n int"], "")
    run = begun(
        each,
        [*cases],
        "CREATE SCHEMA other; CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TYPE pair AS (x int, y int)",
        "CREATE TYPE fields AS (x int, y int); CREATE TYPE ends AS (x int, y int)",
        "CREATE TYPE ranges AS RANGE (subtype = ends)",
        *(
            f"CREATE TABLE {t} (id int{'' if t == 'keyless' else ' PRIMARY KEY'}, a int, b varchar(20), "
            f"c numeric(6, 2), z timestamp{', m mood' if t == 'labels' else ''}{', m pair' if t == 'field' else ''})"
            f"{' PARTITION BY RANGE (id)' if t == 'parted' else ''}"
            for t in cases
        ),
        "CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE parted_low REPLICA IDENTITY FULL",
        *(f"INSERT INTO {t} VALUES (1, 1, 'one', 1)" for t in cases),
    )
    run.end()
    piece = LogEnd(each.here())
    for t, (statements, _) in cases.items():
        run.do(*(statement.format(t=t) for statement in statements))
    point = run.move()
    assert "the lake has no value" in str(run.carried(point, piece)["endless"])
    wrong = {
        t: why
        for t, why in run.carried(point).items()
        if t in cases and (not isinstance(why, str) or not re.search(IN_A_RUN.get(t, cases[t][1]), why))
    }
    assert wrong == {}


def test_a_read_is_carried_only_between_its_end_and_the_new_position(
    each: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = begun(each, ["t"], "CREATE TABLE t (id int PRIMARY KEY, a int, b int)"), each.source
    run.do("INSERT INTO t VALUES (1, 1, 1)")
    run.end()
    (was,) = run.point.tables
    run.do("ALTER TABLE t ADD n int NOT NULL DEFAULT 7", "INSERT INTO t VALUES (2, 2, 2)")
    # A read that ends only now may have rows of both shapes.
    assert source.ends_of_reads([was]) == {}
    gone = replace(was, name=TableName("public", "gone"))
    assert source.ends_of_reads([gone, was, run.move().tables[0]]).keys() == {was.name}
    point = run.move()
    assert isinstance(run.carried(point)["t"], Evolution)
    assert "before the end of its read" in run.why(point, ended=source.bound_reads().log_end)
    at_upper = replace(was, details={**was.details, AT_UPPER: True})
    assert "only the keys" in run.why(point, table=at_upper)
    without = Facts({name: text for name, text in run.point.identity.fields().items() if name != "publication_since"})
    with pytest.raises(SchemaChanged, match="publication of its own"):
        source.carry_read(without, run.point.position, was, point.tables[0], run.ends[was.name], point.position)

    publication = run.point.identity.fields()["publication"]
    run.do(f"ALTER PUBLICATION {publication} DROP TABLE t")
    assert "no longer in the run's publication" in run.why(point)
    run.do(f"ALTER PUBLICATION {publication} ADD TABLE t")
    assert "was altered" in run.why(point)


def test_a_rewrite_while_the_catalog_is_read(each: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(each, ["t"], "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 1, 1)")
    run.end()
    # If the table is rewritten meanwhile, the catalog has no value for earlier rows, and NULL would be wrong.
    run.do("ALTER TABLE t ADD n int DEFAULT 7")
    point, missing_values = run.move(), schema_changes.missing_values

    def rewritten(*arguments: Any) -> dict[int, str]:
        run.do("VACUUM FULL t")
        return missing_values(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(schema_changes, "missing_values", rewritten)
        assert "altered again meanwhile" in run.why(point)
    assert "rewritten" in run.why(run.move())


def test_recorded_pieces_are_not_carried_if_a_column_was_dropped(each: Kept) -> None:
    """The names and types in the log may be the same before and after that."""
    run = begun(each, ["t"], "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 1, 1)")
    run.end()
    run.do("ALTER TABLE t DROP b", "ALTER TABLE t ADD b int", "UPDATE t SET b = 5")
    after = LogEnd(each.here())
    point = run.move()
    assert "may have been dropped before" in run.why(point, after)
    run.do("ALTER PUBLICATION {} SET (publish = 'insert')".format(run.point.identity.fields()["publication"]))
    assert "publication" in run.why(point, after)


def test_a_read_is_not_carried_to_columns_that_the_user_may_not_read(each: Kept) -> None:
    """The values of a new column are in the catalog and in the log, which this user may read."""
    role = "carrier"
    each.run(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'",
        f"GRANT CREATE ON DATABASE {each.database} TO {role}",
        "CREATE TABLE t (id int PRIMARY KEY, a int); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 1)",
        f"ALTER TABLE t OWNER TO {role}",
    )
    own, each.source = each.source, PostgresSource(replace(each.source.settings, user=role, password="p"))
    try:
        plans = each.plans("t")
        run = Reading(each, each.source.record_initial(plans, each.options.lock, RUN_ID))
        run.end()
        run.do("ALTER TABLE t ADD secret text DEFAULT 'withheld'", "INSERT INTO t VALUES (2, 2, 'logged')")
        run.do(f"REVOKE SELECT ON t FROM {role}", f"GRANT SELECT (id, a, ctid) ON t TO {role}")
        point = each.source.record_initial(plans, each.options.lock, RUN_ID)
        assert "lacks SELECT" in run.why(point)
        assert "lacks SELECT" in run.why(point, LogEnd(each.here()))
        run.do(f"GRANT SELECT (secret) ON t TO {role}")
        assert isinstance(run.carried(each.source.record_initial(plans, each.options.lock, RUN_ID))["t"], Evolution)
    finally:
        each.source.release(RUN_ID)
        each.source = own
        each.run(f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_table_that_won_and_lost_a_column_is_read_again_if_no_slot_is_free(each: Kept) -> None:
    """To find out whether the column was dropped before the read, the run would copy a slot."""
    run = begun(each, ["t"], "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    run.end()
    run.do("ALTER TABLE t ADD a int", "ALTER TABLE t DROP a")
    point = run.move()
    sql = "SELECT current_setting('max_replication_slots')::int - count(*)::int FROM pg_replication_slots"
    others = [f"other_{number}" for number in range(each.ask(sql))]
    try:
        for name in others:
            each.run(f"SELECT pg_create_physical_replication_slot('{name}')")
        assert "all replication slots are in use" in run.why(point)
    finally:
        for name in others:
            each.run(f"SELECT pg_drop_replication_slot('{name}')")
    assert "added and dropped again" in run.why(point)
