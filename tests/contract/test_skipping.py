"""A table that proves impossible to copy during a run is left out, and the other tables are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import PreflightError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.pipeline import Pipeline, published_counts
from tests.conftest import MysqlFactory
from tests.contract.databases import Database

Hazard = Callable[[Database, str, str], None]


def survivor(db: Database, table: str, odd: str) -> None:
    """A row that no session changes has the value."""


def key_of_a_read(db: Database, table: str, odd: str) -> None:
    """The value is in a key when it is read, and cannot be marked as unrepresentable there."""
    db.execute(f"INSERT INTO {table} VALUES ({odd})")


def key_in_the_log(db: Database, table: str, odd: str) -> None:
    """The value is in a key that was deleted before the read, so only the log has it."""
    db.execute(f"INSERT INTO {table} VALUES ({odd})", f"DELETE FROM {table} WHERE day = {odd}")


def restored(db: Database, table: str, odd: str) -> None:
    """The value is gone when the row is read, and the rewind puts it back."""
    db.execute(f"UPDATE {table} SET day = NULL WHERE id = 1")


DAYS = survivor, restored
KEYED = key_of_a_read, key_in_the_log


def prepare(db: Database, hazard: Hazard) -> str:
    """Make a table for the hazard, and return its name."""
    odd, _ = db.impossible_date
    table = hazard.__name__
    if hazard in DAYS:
        db.create(table, "id INT PRIMARY KEY, day DATE")
        db.execute(f"INSERT INTO {table} VALUES (1, {odd}), (2, '2024-02-29')")
    else:
        db.create(table, "day DATE PRIMARY KEY")
        db.execute(f"INSERT INTO {table} VALUES ('2024-02-29')")
    return table


@pytest.mark.slow
def test_tables_are_left_out_with_their_reasons_and_the_others_are_exact(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    tables = {hazard: prepare(db, hazard) for hazard in (*DAYS, *KEYED)}
    db.create("orders", "id INT PRIMARY KEY, day DATE")
    db.execute("INSERT INTO orders VALUES (1, '2024-02-29'), (2, NULL), (3, '2024-03-01')")
    names, other = [str(db.name(table)) for table in tables.values()], str(db.name("orders"))
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [str(db.name("*"))], on_table_error="skip")
    try:
        run.record()
        for happen, table in tables.items():
            happen(db, table, odd)
        db.execute("UPDATE orders SET day = NULL WHERE id = 1", "DELETE FROM orders WHERE id = 3")
        found = run.finish()
        again = run.consolidate()
    finally:
        run.release()
    assert set(found["published"]) == set(found["rows"]) == {other}
    assert set(found["skipped"]) == {*names}
    for name in names:
        assert f"{name}.day" in found["skipped"][name]
    assert again["published"] == found["published"]
    assert again["skipped"] == found["skipped"]
    _, rows = published_counts(found["published"][other])
    wanted: Counter[tuple[Any, ...]] = Counter([(1, "2024-02-29"), (2, "None"), (3, "2024-03-01")])
    assert Counter((number, str(day)) for number, day in rows.elements()) == wanted
    assert (tmp_path / other / "_latest.json").is_file()
    for name in names:
        assert not list((tmp_path / name).glob("**/*"))


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["watermark", "lock"])
def test_a_table_that_the_server_cannot_read_any_more_is_left_out(
    mysql_factory: MysqlFactory, spark: SparkSession, tmp_path: Path, consistency: str
) -> None:
    """Its file is lost between the position and the read."""
    server = mysql_factory({})
    server.query("CREATE DATABASE d")
    for name in ("broken", "whole"):
        server.query(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)")
        server.query(f"INSERT INTO d.{name} VALUES (1), (2)")
    where, target = ConnectionSettings("mysql", server.host, server.port, "root"), (tmp_path / "lake").as_uri()
    run = Pipeline(spark, where, target, ["d.*"], consistency=consistency, on_table_error="skip")
    try:
        run.record()
        server.stop()
        (server.data / "d" / "broken.ibd").unlink()
        server.restart()
        found = run.finish()
    finally:
        run.release()
    assert {*found["published"]} == {"d.whole"}
    assert "the server cannot read the table" in found["skipped"]["d.broken"]
    assert "MySQL error 1812" in found["skipped"]["d.broken"]
    with pytest.raises(PreflightError, match="MySQL error 1812") as refused:
        Pipeline(spark, where, target, ["d.*"], consistency=consistency).record()
    assert [problem.table for problem in refused.value.problems] == ["d.broken"]


@pytest.mark.slow
def test_odd_names_are_told_apart_when_a_table_is_left_out_in_mid_run(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    left_out, copied = ("a*", '"a"', "..", "a b.c"), ("ab", "a", "%2E", 'ü "☂" `.b', "!a")
    for name in (*left_out, *copied):
        db.create(db.quote(name), "id INT PRIMARY KEY, day DATE")
        db.execute(f"INSERT INTO {db.quote(name)} VALUES (1, '2024-02-29'), (2, NULL)")
    for name in left_out:
        db.execute(f"UPDATE {db.quote(name)} SET day = {odd}")
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [str(db.name("*"))], on_table_error="skip")
    try:
        run.record()
        for name in copied:
            db.execute(f"DELETE FROM {db.quote(name)} WHERE id = 1")
        found = run.finish()
    finally:
        run.release()
    assert set(found["skipped"]) == {str(db.name(name)) for name in left_out}
    assert set(found["published"]) == {str(db.name(name)) for name in copied}
    for name in copied:
        _, rows = published_counts(found["published"][str(db.name(name))])
        assert {(number, str(day)) for number, day in rows} == {(1, "2024-02-29"), (2, "None")}


# The read finds the one, and a step after it the other.
@pytest.mark.parametrize(
    "hazard",
    [
        key_of_a_read,
        restored,
        pytest.param(survivor, marks=pytest.mark.slow),
        pytest.param(key_in_the_log, marks=pytest.mark.slow),
    ],
)
def test_a_run_of_which_nothing_would_be_left_stops(
    db: Database, spark: SparkSession, tmp_path: Path, hazard: Hazard
) -> None:
    odd, _ = db.impossible_date
    table = prepare(db, hazard)
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [str(db.name("*"))], on_table_error="skip")
    try:
        run.record()
        hazard(db, table, odd)
        with pytest.raises(ValueNotRepresentable, match=r"\.day"):
            run.finish()
    finally:
        run.release()
    assert not list(tmp_path.glob("*/_latest.json"))
