"""Parts of tables, on every kind of database: which conditions are accepted, and which the server evaluates."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import PreflightError, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes.filter_images import copied, decode_published, selected_changes
from airflow_provider_cdc.lake import read_latest
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import DELTA_SCHEMA
from airflow_provider_cdc.sources.planning.selections import select
from harness.pipeline import Pipeline, published, published_counts
from harness.proxy import Proxy
from tests.contract.begun import LOCK, Begin, Begun, sent
from tests.contract.databases import Database

TIMES = {"mysql": ("DATETIME(6)", "TIMESTAMP(3) NULL"), "postgres": ("timestamp", "timestamptz")}
COLUMNS = (
    "id INT PRIMARY KEY, big BIGINT, small SMALLINT NOT NULL, amount DECIMAL(12,2), day DATE, at {0}, zoned {1}, "
    "ratio DOUBLE PRECISION, note TEXT"
)
DAYS = ["0001-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"]
MOMENTS = [*(f"{day} 00:00:00" for day in DAYS), "2024-02-29 12:34:56.789", "9999-12-31 23:59:59.999999"]
SHORT = ["1970-01-01 00:00:01", "2000-06-01 12:00:00.125", "2038-01-19 03:14:07"]
BIGS = [-(2**63), -1, 0, 1, 2**63 - 1]
AMOUNTS = ["-9999999999.99", "-0.01", "0", "0.01", "9999999999.99"]


def fill(db: Database, rows: int = 300) -> None:
    """A table of extremes, and of values that no Arrow type holds."""
    chance = random.Random(7)
    db.create("t", COLUMNS.format(*TIMES[db.kind]))
    odd, _ = db.impossible_date
    values = []
    for number in range(rows):
        drawn = [
            str(number),
            str(chance.choice(BIGS)),
            str(chance.choice([-(2**15), 0, 2**15 - 1])),
            chance.choice(AMOUNTS),
            chance.choice([*(f"'{day}'" for day in DAYS), odd]),
            chance.choice([*(f"'{one}'" for one in MOMENTS), odd]),
            chance.choice([f"'{one}'" for one in SHORT]),
            chance.choice(["0.1", "-1.5"]),
            chance.choice(["'a'", "'A'", "'é'"]),
        ]
        for column in (1, 3, 4, 5, 6, 7, 8):
            if chance.random() < 0.15:
                drawn[column] = "NULL"
        values.append(f"({', '.join(drawn)})")
    with db.connect() as connection, connection.cursor() as cursor:
        if db.kind == "mysql":
            cursor.execute("SET time_zone = '+00:00'")
        else:
            cursor.execute("SET TimeZone TO 'UTC'")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(values)}")
    db.analyze("t")


def drawn(chance: random.Random, depth: int = 3) -> str:
    """A condition on its columns."""
    kind = chance.randrange(6) if depth else 0
    if kind >= 4:
        both = f" {chance.choice(['AND', 'OR'])} ".join(drawn(chance, depth - 1) for _ in range(2))
        return f"({both})" if chance.random() < 0.5 else both
    if kind == 3:
        return f"NOT ({drawn(chance, depth - 1)})"
    column, literals = chance.choice(
        [
            ("id", [str(chance.randrange(300))]),
            ("big", list(map(str, BIGS))),
            ("small", ["-32768", "0", "32767"]),
            ("amount", AMOUNTS),
            ("day", [f"'{day}'" for day in DAYS]),
            ("at", [f"'{one}'" for one in MOMENTS]),
            ("zoned", [f"'{one}Z'" for one in (*SHORT, *MOMENTS)]),
            ("ratio", ["0.1", "-1.5"]),
            ("note", ["'a'", "'e'"]),
        ]
    )
    one, other = (chance.choice(literals) for _ in range(2))
    op = chance.choice(["=", "<>", "<", "<=", ">", ">="])
    no = chance.choice(["", "NOT "])
    return chance.choice(
        [
            f"{column} {op} {one}",
            f"{column} {op} {one}",
            f"{column} {no}IN ({one}, {other})",
            f"{column} {no}BETWEEN {one} AND {other}",
            f"{column} IS {no}NULL",
            chance.choice(["TRUE", "FALSE"]),
        ]
    )


def read(run: Begun, table: Table) -> Iterator[tuple[Any, dict[str, list[int]]]]:
    """The batches that the server sends of a table, and where they have placeholders."""
    for chunk in run.source.plan_chunks(table, 100):
        with run.source.reader(sent(table), run.plans["t"].consistency, LOCK) as reader:
            for batch in reader.read(chunk):
                odd: dict[str, list[int]] = {}
                for value in reader.odd:
                    odd.setdefault(value.column, []).append(value.row)
                yield batch, odd


@pytest.mark.long
@pytest.mark.parametrize("policy", ["error", "null"])
def test_the_server_sends_every_row_for_which_the_condition_is_true(db: Database, begin: Begin, policy: str) -> None:
    fill(db)
    run = begin("t", unrepresentable=policy)
    table = run.tables["t"]
    every = list(read(run, table))
    chance = random.Random(policy)
    pushed = spared = 0
    hazards = ["day IS NULL OR id = 5", "at IS NULL AND id < 200", "NOT (zoned IS NOT NULL OR id > 9)"]
    for text in [*hazards, *(drawn(chance) for _ in range(60))]:
        term = parse(text)
        selected = replace(table, selection=Selection(term))
        asked = run.source.pushed_condition(selected)
        if not asked:
            continue
        pushed += 1
        wanted = {key for batch, odd in every for key in batch.filter(holds(term, batch, odd))["id"].to_pylist()}
        came, found = set(), set()
        for batch, odd in read(run, selected):
            came |= {*batch["id"].to_pylist()}
            found |= {*batch.filter(holds(term, batch, odd))["id"].to_pylist()}
        assert wanted <= came, f"{text}: asked for {asked}"
        assert found == wanted, text
        spared += len(came) < 300
    assert pushed > 20
    assert spared > 10


@pytest.mark.long
def test_a_small_part_is_about_all_that_the_server_sends(db: Database, begin: Begin) -> None:
    fill(db)
    run = begin("t")
    table = run.tables["t"]
    for text, most in (
        ("id BETWEEN 100 AND 102 AND note <> 'b'", 3),
        ("note LIKE 'a%' AND NOT (id < 297 OR note = 'b')", 3),
        ("day >= '2024-01-01' AND id IN (1, 2, 3)", 3),
    ):
        selected = replace(table, selection=Selection(parse(text)))
        assert sum(batch.num_rows for batch, _ in read(run, selected)) <= most, text


WIDE = "id INT PRIMARY KEY, kind INT NOT NULL, day DATE, large TEXT, a INT, b INT, c INT, d INT, e INT, note VARCHAR(9)"


def make_wide(db: Database, rows: int, large: int) -> None:
    """A table of ten columns, one of which is a text of this many characters."""
    db.create("wide", WIDE)
    for start in range(0, rows, 500):
        some = range(start, min(start + 500, rows))
        db.insert("wide", [(n, n % 7, "2026-01-01", f"{n:08}" * (large // 8), n, n, n, n, n, f"n{n}") for n in some])
    db.analyze("wide")


@pytest.mark.long
def test_only_what_is_published_or_looked_at_is_sent(db: Database, begin: Begin) -> None:
    make_wide(db, 1000, 4000)
    run = begin("wide")
    whole = run.tables["wide"]

    with Proxy(db.settings.port) as proxy:
        source = open_source(replace(db.settings, host=proxy.host, port=proxy.port))

        def read(table: Table) -> tuple[pa.Table, int]:
            """The rows that come, and the bytes."""
            with source.reader(table, run.plans["wide"].consistency, LOCK) as reader:
                before = proxy.answered
                batches = [batch for chunk in source.plan_chunks(table, 300) for batch in reader.read(chunk)]
                return pa.Table.from_batches(batches), proxy.answered - before

        rows, every = read(whole)
        assert every > 4_000_000
        for where, columns, sent, most in (
            ("TRUE", ("kind", "note"), ["id", "kind", "note"], every / 50),
            ("note <> 'n7' AND id >= 500", ("kind",), ["id", "kind", "note"], every / 100),
            ("day IS NOT NULL", ("id",), ["id", "day"], every / 50),
            ("large LIKE '0%'", ("note",), ["id", "large", "note"], every * 1.1),
            ("id BETWEEN 500 AND 509", (), rows.column_names, every / 50),
        ):
            term = parse(where)
            found, came = read(replace(whole, selection=Selection(term, columns)))
            assert found.schema.names == sent
            assert came < most, where
            (wanted,) = rows.combine_chunks().to_batches()
            copied = wanted.filter(holds(term, wanted)).select(sent)
            (part,) = found.combine_chunks().to_batches()
            assert part.filter(holds(term, part)).sort_by("id").equals(copied.sort_by("id")), where


@pytest.mark.long
@pytest.mark.parametrize("policy", ["error", "null", "string"])
def test_a_value_is_the_same_whatever_is_read_beside_it(db: Database, begin: Begin, policy: str) -> None:
    """Those that no Arrow type holds are the same ones, too."""
    fill(db)
    run = begin("t", unrepresentable=policy)
    whole = run.tables["t"]
    names = [column.name for column in whole.columns]
    every, everywhere = all_of(run, whole)
    chance = random.Random(policy)
    for _ in range(40):
        asked = chance.sample(names, chance.randrange(1, len(names) + 1))
        looked_at = chance.sample(names, chance.randrange(3))
        term = parse(" OR ".join(["TRUE", *(f"{name} IS NULL" for name in looked_at)]))
        part = replace(whole, selection=Selection(term, tuple(sorted(asked))))
        rows, odd = all_of(run, part)
        wanted = [name for name in names if name in {"id", *asked, *looked_at}]
        assert rows.schema.equals(every.schema.empty_table().select(wanted).schema)
        assert rows.equals(every.select(wanted)), (asked, looked_at)
        assert odd == {one for one in everywhere if one[1] in wanted}


def all_of(run: Begun, table: Table) -> tuple[pa.Table, set[tuple[int, str]]]:
    """All rows that come of a table, by their ids; and the odd values, by id and column."""
    batches = [*read(run, table)]
    odd = {
        (batch["id"][row].as_py(), column) for batch, found in batches for column, rows in found.items() for row in rows
    }
    return pa.Table.from_batches([batch for batch, _ in batches]).sort_by("id").combine_chunks(), odd


@pytest.mark.long
def test_of_one_percent_of_the_keys_about_one_percent_of_the_chunks_is_planned(db: Database, begin: Begin) -> None:
    make_wide(db, 20_000, 40)
    run = begin("wide")
    whole = run.tables["wide"]
    every = run.source.plan_chunks(whole, 250)
    assert len(every) > 50
    for where, most in (
        ("id BETWEEN 10000 AND 10199", 2),
        ("id > 19800 AND kind = 3", 2),
        ("(id = 5 OR id IN (7, 9)) AND note <> 'x'", 1),
        ("id < 0", 1),
        ("kind = 3", len(every)),
        ("id > 100 OR kind = 3", len(every)),
    ):
        term = parse(where)
        table = replace(whole, selection=Selection(term))
        chunks = run.source.plan_chunks(table, 250)
        assert len(chunks) <= most, where
        with run.source.reader(sent(table), run.plans["wide"].consistency, LOCK) as reader:
            batches = [batch for chunk in chunks for batch in reader.read(sent(chunk))]
        ids = [key for batch in batches for key in batch.filter(holds(term, batch))["id"].to_pylist()]
        assert sorted(ids) == sorted(key for (key,) in db.query(f"SELECT id FROM wide WHERE {where}")), where


@pytest.mark.long
def test_a_column_that_is_not_read_may_hold_what_it_will(db: Database, begin: Begin) -> None:
    """Also without a key, where any such value that is read stops the run."""
    odd, _ = db.impossible_date
    for name, columns in (("t", "id INT PRIMARY KEY, note TEXT, day DATE"), ("k", "id INT, note TEXT, day DATE")):
        db.create(name, columns)
        db.execute(f"INSERT INTO {name} VALUES (1, 'a', {odd}), (2, 'b', '2026-01-01'), (3, 'b', {odd})")
    run = begin("t", "k")
    with run.source.shared_reads({plan.consistency for plan in run.plans.values()}, LOCK) as shared:
        for name, table in run.tables.items():
            part = replace(table, selection=Selection(parse("id > 1"), ("note",)))
            consistency = run.plans[name].consistency
            (chunk,) = run.source.plan_chunks(part, 1000)
            with sent(shared).reader(sent(part), consistency, LOCK) as reader:
                (batch,) = reader.read(chunk)
                assert sorted(batch["note"].to_pylist()) == ["b", "b"]
                assert not reader.odd
            with (
                pytest.raises(ValueNotRepresentable) if table.keyless else nullcontext(),
                sent(shared).reader(sent(table), consistency, LOCK) as reader,
            ):
                list(reader.read(chunk))
                assert len(reader.odd) == 2


@pytest.mark.long
def test_of_a_table_without_a_key_a_change_may_hold_what_it_will_where_nothing_is_read(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    db.create("k", "id INT, note TEXT, day DATE")
    db.execute(f"INSERT INTO k VALUES (1, 'a', {odd}), (2, 'b', '2026-01-01'), (1, 'a', NULL), (9, 'c', {odd})")
    name = str(db.name("k"))
    made = Pipeline(
        spark, db.settings, tmp_path.as_uri(), [name], columns={name: ["note"]}, where={name: "note <> 'x' AND id < 9"}
    )
    made.record()
    try:
        db.execute("UPDATE k SET note = 'x' WHERE id = 1", f"INSERT INTO k VALUES (3, 'd', {odd})")
        made.finish()
    finally:
        made.release()
    assert published_counts(made.found["consolidate"]["published"][name]) == (["note"], {("a",): 2, ("b",): 1})


@pytest.mark.parametrize("key", ["id", ""], ids=["keyed", "keyless"])
def test_a_row_that_is_left_out_may_hold_what_it_will_whether_or_not_it_is_touched(
    db: Database, begin: Begin, key: str
) -> None:
    odd, _ = db.impossible_date
    db.create("t", f"id INT{' PRIMARY KEY' if key else ''}, note TEXT, day DATE")
    db.execute(f"INSERT INTO t VALUES (1, 'a', '2026-01-01'), (2, 'b', {odd}), (3, 'a', '2026-01-02')")
    run = begin("t")
    db.execute("UPDATE t SET note = 'c' WHERE id = 2", "UPDATE t SET day = '2026-01-03' WHERE id = 3")
    bound, consistency = run.source.bound_reads(), run.plans["t"].consistency
    days = [date(2026, 1, day) for day in (2, 3)]
    # Of a table with a key, what is put back; of one without, what the window did.
    for where, columns, back, did in (
        ("note = 'a'", (), {(3, "a", days[0]): 1}, {(3, "a", days[0]): -1, (3, "a", days[1]): 1}),
        ("TRUE", ("note",), {(2, "b"): 1, (3, "a"): 1}, {("b",): -1, ("c",): 1}),
        ("day >= '2026-01-01'", ("note",), {(3, "a"): 1}, {}),
        ("FALSE", (), {}, {}),
    ):
        table = replace(run.tables["t"], selection=Selection(parse(where), columns))
        (chunk,) = run.source.plan_chunks(table, 1000)
        with (
            run.source.shared_reads({consistency}, LOCK) as shared,
            sent(shared).reader(sent(table), consistency, LOCK) as reader,
        ):
            for batch in reader.read(chunk):
                assert copied(table, batch, reader.odd)[1] == []
        tracked = [replace(one, table=table) for one in run.tracked(bound.upper)]
        found: dict[tuple[Any, ...], int] = {}
        for segment in run.source.segments(Start(run.position, run.identity), AT_START, bound.log_end):
            with sent(run.source).read_segment(segment, run.position, tracked) as changes:
                rows = selected_changes(run.source, tracked, pa.Table.from_batches(changes, DELTA_SCHEMA))
            there = rows.filter(rows["before"].is_valid()).combine_chunks()
            images = pa.concat_arrays([pa.array([], pa.binary()), *there["before"].chunks])
            published_rows = decode_published(run.source, table, images).to_pylist()
            for row, count in zip(published_rows, there["count"].to_pylist(), strict=True):
                found[tuple(row.values())] = found.get(tuple(row.values()), 0) + (1 if key else count)
        # For a row without changes, the source may yield an entry with a count of 0, or none.
        counted_rows = {row: count for row, count in found.items() if count}
        assert counted_rows == (back if key else did), where


@pytest.mark.parametrize(
    ("where", "columns", "told"),
    [
        ({"{0}.t": "id = 1 AND lower(note) = 'x'"}, {}, ["line 1, column 12", "lower(…) is a function"]),
        ({"{0}.t": "id = 1\nAND nope = 2"}, {}, ["line 2, column 5", "no column nope", "note"]),
        ({"{0}.t": "id = 1.5"}, {}, ["line 1, column 1", "whole number"]),
        ({"{0}.t": "zoned > '2024-01-01 00:00:00'"}, {}, ["has no time zone"]),
        ({"{0}.nothing": "id = 1"}, {}, ["{0}.nothing", "matches no table of the run"]),
        ({"{0}.t": "id = 1", "{0}.*": "id = 2"}, {}, ["also matched by"]),
        ({"!{0}.t": "id = 1"}, {}, ["matches no table"]),
        ({}, {"{0}.t": ["nite"]}, ["no column nite", "did you mean note"]),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    db: Database, where: dict[str, str], columns: dict[str, list[str]], told: list[str]
) -> None:
    db.create("t", COLUMNS.format(*TIMES[db.kind]))
    run = Begun(db, "t")
    try:
        filled = {name.format(db.schema): value for name, value in where.items()}
        asked = {name.format(db.schema): value for name, value in columns.items()}
        with pytest.raises(PreflightError) as refused:
            select(run.source, list(run.plans.values()), [], filled, asked)
    finally:
        run.release()
    for text in told:
        assert text.format(db.schema) in str(refused.value)


def test_what_a_table_is_left_out_of_may_still_be_named(db: Database, begin: Begin) -> None:
    db.create("t", COLUMNS.format(*TIMES[db.kind]))
    run = begin("t")
    skipped = [f"{db.schema}.spoilt"]
    where = {f"{db.schema}.spoilt": "id = 1", f"{db.schema}.t": "id = 1"}
    (plan,) = select(run.source, list(run.plans.values()), skipped, where, None)
    assert plan.selection.condition == '"id" = 1'
    assert "the server sends only rows where" in plan.reason
    assert select(run.source, [plan], skipped, where, None) == [plan], "asked again, it is the same"


@pytest.mark.long
def test_parts_and_wholes_of_a_table_lie_apart_and_an_odd_value_stops_only_who_publishes_it(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    db.create("t", "id INT PRIMARY KEY, day DATE, note TEXT")
    db.execute(f"INSERT INTO t VALUES (1, {odd}, 'a'), (2, '2024-01-01', 'b'), (3, NULL, 'c')")
    name = str(db.name("t"))

    def run(number: int, **part: Any) -> Pipeline:
        made = Pipeline(
            spark, db.settings, tmp_path.as_uri(), [name], run_id=f"2026010{number}T000000Z-00000000", keep=1, **part
        )
        made.record()
        try:
            # Now the log has the odd value, too, in what each row was before.
            db.execute("UPDATE t SET note = CONCAT(note, '!')")
            made.finish()
        finally:
            made.release()
        return made

    def rows(made: Pipeline) -> tuple[list[str], list[Any]]:
        names, found = published(made.found["consolidate"]["published"][name])
        return names, sorted(row[0] for row in found)

    assert rows(run(1, where={name: "day >= '2024-01-01'"})) == (["id", "day", "note"], [2])
    assert rows(run(2, columns={name: ["note"]})) == (["id", "note"], [1, 2, 3])
    assert rows(run(3, where={name: "id > 5"})) == (["id", "day", "note"], [])
    with pytest.raises(ValueNotRepresentable, match="day"):
        run(4, where={name: "day IS NULL"})
    assert rows(run(5, unrepresentable="null")) == (["id", "day", "note"], [1, 2, 3])
    # Only the copies of the same part are older ones of it.
    assert rows(run(6, where={name: "id>5"})) == (["id", "day", "note"], [])
    copies = [
        read_latest(tmp_path.as_uri(), name, **asked)
        for asked in ({"where": "`day`>='2024-01-01'"}, {"columns": ["note"]}, {"where": "id  >  5"}, {})
    ]
    assert [copy and (copy.run_id[:8], copy.rows) for copy in copies] == [
        ("20260101", 1),
        ("20260102", 3),
        ("20260106", 0),
        ("20260105", 3),
    ]
    assert copies[1] is not None
    assert copies[1].columns == ("note",)
    left = {path.parent.name: path.name for path in tmp_path.glob("*/snapshot=*")}
    assert len(left) == len([*tmp_path.glob("*/snapshot=*")]) == 4
