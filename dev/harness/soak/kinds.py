"""The kinds of work that `dev/soak` draws from: each runs some of the tests with a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    ``arguments`` of pytest choose the tests, of which the seed draws ``tests`` (0: all of them run). ``weight``: how
    often it is drawn, against the others.
    """

    what: str
    arguments: tuple[str, ...]
    tests: int = 1
    weight: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)


def _histories(database: str, *more: str) -> tuple[str, ...]:
    return tuple(f"tests/consistency/{database}/{name}" for name in more)


PROPERTIES = ("tests/core", "tests/sources", "tests/jobs")
KERNELS = (
    *("tests/sources/mysql/decode", "tests/sources/mysql/log"),
    *("tests/sources/postgres/decode", "tests/sources/postgres/log"),
    "tests/sources/log/test_netting.py",
)

AIRFLOWS = ("backfill", "browser", "nightly")
"""Tests that start all parts of an Airflow, and take minutes."""

PARTS = "test_parts_of_tables.py::test_no_row_of_a_part_differs_after_any_night"
PAST = "test_as_of.py::test_no_row_differs_from_the_past"
CHANGES = "test_changes.py::test_replayed_onto_a_copy_they_give_the_next"

KINDS: Mapping[str, Kind] = {
    "mysql-histories": Kind(
        "copies of a MySQL with random writers, as of now or the past, against a replay of its log",
        _histories("mysql", "test_random_histories.py", PAST, PARTS),
        weight=6,
    ),
    "postgres-histories": Kind(
        "copies of a PostgreSQL with random writers, as of now or the past, against its own recovery",
        _histories("postgres", "test_random_histories.py", "test_again_histories.py", PAST, PARTS),
        weight=6,
    ),
    "mysql-nights": Kind(
        "chains of nights on MySQL, and their changes",
        _histories("mysql", "test_roll_forward.py", CHANGES),
        weight=4,
    ),
    "postgres-nights": Kind(
        "chains of nights on PostgreSQL, and their changes",
        _histories("postgres", "test_roll_forward.py", CHANGES),
        weight=4,
    ),
    "model-histories": Kind(
        "runs, chains of nights, changes and retention over histories of a source that is a model",
        (
            "tests/jobs/test_exactness.py",
            "tests/jobs/extract_delta/test_change_feed.py::test_changes_of_random_histories",
            "tests/jobs/roll_forward/test_roll_forward.py::test_chains_of_nights",
            "tests/jobs/consolidate/test_remove_old_copies.py::test_runs_that_are_published_and_remove_older_copies_at_the_same_time",
        ),
        tests=3,
        weight=3,
    ),
    "statements": Kind(
        "random statements and writers that delete parents, on MySQL",
        (
            "tests/sources/mysql/log/test_statement_writes.py::test_random_statements_that_pass_changed_no_copied_row",
            "tests/sources/mysql/tables/test_cascades.py::test_writers_that_delete_parents_meanwhile",
        ),
    ),
    "chaos": Kind(
        "a run under a random schedule of faults: MySQL with even seeds, PostgreSQL with odd ones",
        ("tests/chaos",),
        weight=6,
    ),
    "ddl": Kind(
        "DDL while tables are read, on PostgreSQL", ("-m", "long", "tests/consistency/postgres/test_ddl.py"), tests=6
    ),
    "types": Kind(
        "keys and rows of any types",
        (
            *("-m", "long"),
            "tests/sources/mysql/chunking/test_key_types.py",
            "tests/sources/mysql/chunking/test_pushed_conditions.py",
            "tests/sources/postgres/chunking/test_key_ranges.py",
        ),
        tests=6,
    ),
    "properties": Kind("properties, with ten times the examples", ("-m", "hypothesis", *PROPERTIES), tests=3, weight=4),
    "kernels": Kind(
        "kernels that watch themselves: overflows, shifts that are too far, reads and writes outside of arrays",
        KERNELS,
        tests=40,
        environment={"CDC_WATCH_KERNELS": "1"},
    ),
    "more-mysql": Kind(
        "what else is long, on MySQL",
        (
            *("-m", "long", "tests/sources/mysql", "tests/consistency/mysql"),
            "--ignore=tests/sources/mysql/chunking/test_key_types.py",
        ),
        tests=4,
    ),
    "more-postgres": Kind(
        "what else is long, on PostgreSQL",
        (
            *("-m", "long", "tests/sources/postgres", "tests/consistency/postgres"),
            "--ignore=tests/consistency/postgres/test_ddl.py",
        ),
        tests=4,
    ),
    "more-contract": Kind("what else is long, on both", ("-m", "long", "tests/contract"), tests=4),
    "more": Kind(
        "what else is long",
        (
            *("-m", "long", "tests"),
            *(
                f"--ignore=tests/{name}"
                for name in ("chaos", "consistency", "contract", "dags", "harness", "sources", "wheel")
            ),
            "--ignore=tests/jobs/runtime/test_cluster.py",
        ),
        tests=4,
    ),
    "cluster": Kind("executors on a cluster", ("tests/jobs/runtime/test_cluster.py",), tests=0, weight=1),
    "dags": Kind(
        "whole DAG runs",
        ("-m", "long", "tests/dags", *(f"--ignore=tests/dags/test_{name}.py" for name in AIRFLOWS)),
        weight=3,
    ),
    "airflow": Kind(
        "nights and backfills in an Airflow with all its parts",
        ("tests/dags/test_nightly.py", "tests/dags/test_backfill.py"),
        weight=1,
    ),
    "browser": Kind("a person at Airflow's UI", ("tests/dags/test_browser.py",), tests=0, weight=1),
    "benches": Kind("the benches, on tiny tables", ("-m", "long", "tests/harness/test_bench.py"), weight=1),
}

FIXED = (
    ("chaos", 4),
    ("chaos", 7),
    ("dags", 1),
    ("mysql-nights", 2),
    ("postgres-nights", 3),
    ("mysql-histories", 2),
    ("postgres-histories", 5),
    ("model-histories", 3),
    ("properties", 3),
    ("statements", 4),
    ("ddl", 4),
    ("types", 4),
)
"""The pieces of `--fixed`, those that take longest first."""


def command(name: str, seed: int) -> tuple[list[str], dict[str, str]]:
    """The arguments of pytest for a piece of work, and its environment over the present one."""
    kind = KINDS[name]
    arguments = ["-q", "-rf", f"--hypothesis-seed={seed}", "-p", "no:cacheprovider", *kind.arguments]
    variables: dict[str, Any] = {"CDC_SOAK_SEED": seed, "CDC_SOAK_TESTS": kind.tests, **kind.environment}
    return arguments, {variable: str(value) for variable, value in variables.items()}
