"""The survey reports, or on request leaves out, exactly the tables that cannot be copied, before any work."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.planning.survey import Survey, survey
from tests.contract.databases import Database


@pytest.fixture
def shop(db: Database) -> Database:
    """Two tables that can be copied, one that cannot, and one with impossible dates near both of its ends."""
    odd, _ = db.impossible_date
    db.create("orders", "id INT PRIMARY KEY, day DATE")
    db.execute("INSERT INTO orders VALUES (1, '2024-02-29'), (2, NULL)")
    db.create("visits", "a INT")
    db.create("stray", "id INT PRIMARY KEY")
    db.spoil("stray")
    db.create("days", "id INT PRIMARY KEY, day DATE, other DATE")
    rows = [f"({number}, '2024-01-01', {odd if number in (2, 4999) else 'NULL'})" for number in range(1, 5001)]
    db.execute("INSERT INTO days VALUES " + ", ".join(rows))
    return db


def surveyed(db: Database, mode: str, *tables: str, consistency: str = "auto", policy: str = "error") -> Survey:
    patterns = [str(db.name(table)) for table in tables or ["*"]]
    return survey(open_source(db.settings), patterns, TableOptions(consistency, policy), mode)


def refused(db: Database, mode: str, *tables: str, consistency: str = "auto") -> tuple[Problem, ...]:
    with pytest.raises(PreflightError) as error:
        surveyed(db, mode, *tables, consistency=consistency)
    return error.value.problems


def test_what_cannot_be_copied_is_told_all_at_once_with_what_a_look_at_the_rows_shows(shop: Database) -> None:
    problems = {problem.where: problem for problem in refused(shop, "fail")}
    assert set(problems) == {str(shop.name("stray")), f"{shop.name('days')}.other"}
    seen = problems[f"{shop.name('days')}.other"]
    assert " in 2 of the " in seen.what
    assert all(choice in seen.hint for choice in ("string", "null", "On.table_error", "leave the table out"))


def test_what_cannot_be_copied_is_left_out_if_that_is_asked_for_and_the_reasons_are_kept(shop: Database) -> None:
    found = surveyed(shop, "skip")
    assert [plan.table.name for plan in found.plans] == ["orders", "visits"]
    assert set(found.skipped) == {str(shop.name("stray")), str(shop.name("days"))}
    assert "no Arrow type" in found.skipped[str(shop.name("days"))]
    assert shop.kept() == []


def test_a_table_that_is_named_itself_is_left_out_too(shop: Database) -> None:
    found = surveyed(shop, "skip", "stray", "visits")
    assert [plan.table.name for plan in found.plans] == ["visits"]
    assert set(found.skipped) == {str(shop.name("stray"))}


ODD_NAMES = (
    *("a/b", "/", "a.b", "a*", "*b", "**", "!a", '"a"', '"a".b', "'", "`", "\\", "a b", "a\nb", "ü☂", "%", "_", "~2F"),
    *("select", "A", "a?b#c", "..", "x" * 63),
)
NEIGHBOURS = ("a", "ab", "b", "a_b", "a2Fb", "axb")
"""Names that a careless reading of the odd ones would mean."""


def test_tables_of_odd_names_are_left_out_and_no_others(db: Database) -> None:
    for name in (*ODD_NAMES, *NEIGHBOURS):
        db.create(db.quote(name), "id INT PRIMARY KEY")
    for name in ODD_NAMES:
        db.spoil(db.quote(name))
    found = surveyed(db, "skip")
    assert {plan.table.name for plan in found.plans} == set(NEIGHBOURS)
    assert set(found.skipped) == {str(db.name(name)) for name in ODD_NAMES}


def test_a_name_with_a_slash_is_left_out_and_other_odd_ones_are_copied(db: Database) -> None:
    for name in (*ODD_NAMES, *NEIGHBOURS):
        db.create(db.quote(name), "id INT PRIMARY KEY")
    found = surveyed(db, "skip")
    assert {plan.table.name for plan in found.plans} == {*NEIGHBOURS, *ODD_NAMES} - {"a/b", "/"}
    assert set(found.skipped) == {str(db.name("a/b")), str(db.name("/"))}
    assert all("folder" in reason for reason in found.skipped.values())
    assert {problem.table for problem in refused(db, "fail")} == set(found.skipped)


def test_a_run_that_would_have_no_table_is_refused_with_the_reasons(shop: Database) -> None:
    problems = refused(shop, "skip", "stray", "days")
    assert problems[0].where == "tables"
    assert {problem.table for problem in problems[1:]} == {str(shop.name("stray")), str(shop.name("days"))}


def test_what_is_no_table_s_own_is_refused_although_tables_are_skipped(shop: Database) -> None:
    assert [problem.where for problem in refused(shop, "skip", "*", "no_such")] == [str(shop.name("no_such"))]
    assert [one.where for one in refused(shop, "skip", consistency=shop.of_another_kind)] == ["consistency"]


def test_values_are_looked_for_where_they_would_stop_the_run_and_nowhere_else(shop: Database) -> None:
    odd, _ = shop.impossible_date
    shop.create("keyed", "day DATE PRIMARY KEY")
    shop.execute(f"INSERT INTO keyed VALUES ({odd})")
    assert surveyed(shop, "fail", "days", "keyed", policy="string").skipped == {}
    found = surveyed(shop, "skip", "days", "keyed", policy="null")
    assert set(found.skipped) == {str(shop.name("keyed"))}, "null cannot apply to what tells rows apart"


def test_a_value_out_of_sight_is_left_to_the_read(shop: Database) -> None:
    odd, _ = shop.impossible_date
    shop.create("deep", "id INT PRIMARY KEY, day DATE, pad VARCHAR(2000)")
    rows = [f"({number}, {odd if number == 4000 else 'NULL'}, '{'x' * 400}')" for number in range(1, 8001)]
    shop.execute("INSERT INTO deep VALUES " + ", ".join(rows))
    assert surveyed(shop, "fail", "deep").skipped == {}


GOOD = {
    "mysql": {
        "DATE": ["0000-01-01", "0001-02-28", "1582-10-10", "2023-02-28", "2024-02-29", "9999-12-31"],
        "DATETIME(6)": ["0000-01-01 00:00:00", "2000-02-29 23:59:59.999999", "9999-12-31 23:59:59.999999"],
        "TIMESTAMP(6)": ["1970-01-01 00:00:01", "2038-01-19 03:14:07.999999"],
    },
    "postgres": {
        "DATE": ["4713-01-01 BC", "0001-01-01", "5874897-12-31"],
        "TIMESTAMP": ["4713-01-01 00:00:00 BC", "294247-01-10 04:00:54.775807"],
        "TIMESTAMPTZ": ["4713-01-01 00:00:00+00 BC", "294247-01-10 04:00:54.775807+00"],
        "TIME": ["00:00:00", "23:59:59.999999"],
        "NUMERIC(10,2)": ["-99999999.99", "0"],
    },
}
ODD = {
    "mysql": {
        "DATE": ["0000-00-00", "2024-00-15", "2024-02-00", "2023-02-29", "2024-04-31"],
        "DATETIME(6)": ["0000-00-00", "2024-00-15 01:02:03", "2023-02-29 23:59:59"],
        "TIMESTAMP(6)": ["0000-00-00"],
    },
    "postgres": {
        "DATE": ["infinity", "-infinity"],
        "TIMESTAMP": ["infinity", "-infinity", "294247-01-10 04:00:54.775808"],
        "TIMESTAMPTZ": ["infinity", "-infinity", "294276-12-31 23:59:59+00"],
        "TIME": ["24:00:00"],
        "NUMERIC(10,2)": ["NaN"],
    },
}


def test_a_look_sees_just_those_values_that_no_arrow_type_holds(db: Database) -> None:
    lenient = ["SET sql_mode = 'ALLOW_INVALID_DATES'", "SET time_zone = '+00:00'"] if db.kind == "mysql" else []
    for number, (declared, values) in enumerate(GOOD[db.kind].items()):
        db.create(f"good{number}", f"id INT PRIMARY KEY, v {declared} NULL")
        rows = ", ".join(f"({place}, '{value}')" for place, value in enumerate(values))
        db.execute(*lenient, f"INSERT INTO good{number} VALUES {rows}, (99, NULL)")
        for place, value in enumerate(ODD[db.kind][declared]):
            db.create(f"odd{number}_{place}", f"id INT PRIMARY KEY, v {declared} NULL")
            db.execute(*lenient, f"INSERT INTO odd{number}_{place} VALUES (1, '{value}'), (2, NULL)")
    found = surveyed(db, "skip")
    assert {plan.table.name for plan in found.plans} == {f"good{number}" for number in range(len(GOOD[db.kind]))}
