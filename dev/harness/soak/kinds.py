"""The kinds of work of `dev/soak`. Each kind runs some of the tests with a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    ``arguments`` are arguments of pytest that select tests. The seed draws ``tests`` of these (0: all of them run).
    ``weight`` is the relative frequency with which the kind is drawn.
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

AIRFLOWS = ("backfill", "browser", "lost_airflow", "nightly")
"""Tests that start all components of Airflow, and take minutes."""

DATABASES = ("mysql", "postgres")
PARTS = "test_parts_of_tables.py::test_no_row_of_a_part_differs_after_any_night"
PAST = "test_as_of.py::test_no_row_differs_from_the_past"
STANDBYS = "test_standbys.py::test_random_writes_on_the_source_while_a_chain_of_standbys_is_read"
CHANGES = "test_changes.py::test_replayed_onto_a_copy_they_give_the_next"

KINDS: Mapping[str, Kind] = {
    "mysql-histories": Kind(
        "copies of a MySQL server with random writers, as of now or the past, compared with a replay of its log",
        _histories("mysql", "test_random_histories.py", PAST, PARTS),
        weight=6,
    ),
    "postgres-histories": Kind(
        "copies of a PostgreSQL server or its standbys with random writers, as of now or the past, compared with its "
        "own recovery",
        _histories("postgres", "test_random_histories.py", "test_again_histories.py", STANDBYS, PAST, PARTS),
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
    "failovers": Kind(
        "nights with a failover before a random step, with or without lost transactions, and their changes",
        tuple(f"tests/consistency/{name}/test_failover.py::test_random_nights_with_a_failover" for name in DATABASES),
        weight=4,
    ),
    "mysql-schema-changes": Kind(
        "nights on MySQL with random schema changes, which are carried or refused",
        ("tests/sources/mysql/steps/test_random_schema_changes.py",),
    ),
    "postgres-schema-changes": Kind(
        "nights on PostgreSQL with random schema changes, which are carried or refused",
        ("tests/sources/postgres/steps/test_random_schema_changes.py",),
    ),
    "postgres-transactions": Kind(
        "nights on PostgreSQL whose log has transactions of any kind, which the server must survive",
        ("tests/sources/postgres/steps/test_random_transactions.py",),
    ),
    "model-histories": Kind(
        "runs, chains of nights, changes and retention on random histories of a model source",
        (
            "tests/jobs/test_exactness.py",
            "tests/jobs/extract_delta/test_change_feed.py::test_changes_of_random_histories",
            "tests/jobs/roll_forward/test_roll_forward.py::test_chains_of_nights",
            "tests/jobs/consolidate/test_remove_old_copies.py::test_runs_that_are_published_and_remove_older_copies_at_the_same_time",
        ),
        tests=3,
        weight=3,
    ),
    "engine-model": Kind(
        "random worlds of the model of the engine: attempts, crashes, DDL and pieces of the log",
        ("tests/models/test_engine_model.py::test_no_copy_of_random_worlds_differs_from_the_truth",),
        weight=1,
    ),
    "statements": Kind(
        "random statements, and writers that delete parent rows, on MySQL",
        (
            "tests/sources/mysql/log/test_statement_writes.py::test_random_statements_that_pass_changed_no_copied_row",
            "tests/sources/mysql/log/statements/test_client_charsets.py::test_random_statements_in_all_character_sets",
            "tests/sources/mysql/tables/test_cascades.py::test_writers_that_delete_parents_meanwhile",
        ),
    ),
    "chaos": Kind(
        "a run with a random schedule of faults: MySQL with even seeds, PostgreSQL with odd seeds",
        ("tests/chaos/test_chaos.py",),
        weight=6,
    ),
    "survive": Kind(
        "a run whose tables are altered and whose log is lost, and faults: MySQL with even seeds, PostgreSQL with odd",
        ("tests/chaos/test_survive.py",),
        weight=6,
    ),
    "attempts": Kind(
        "two attempts of a run whose tables are altered, one of which works at a random instant of the other one",
        ("tests/jobs/spool/test_interleavings.py",),
        tests=0,
        weight=4,
    ),
    "ddl": Kind(
        "DDL while tables are read, on PostgreSQL", ("-m", "long", "tests/consistency/postgres/test_ddl.py"), tests=6
    ),
    "types": Kind(
        "keys and rows of all types",
        (
            *("-m", "long"),
            "tests/sources/mysql/chunking/test_key_types.py",
            "tests/sources/mysql/chunking/test_pushed_conditions.py",
            "tests/sources/postgres/chunking/test_key_ranges.py",
        ),
        tests=6,
    ),
    "properties": Kind(
        "property tests with ten times the examples", ("-m", "hypothesis", *PROPERTIES), tests=3, weight=4
    ),
    "kernels": Kind(
        "instrumented kernels: overflows, shifts that are too far, reads and writes outside of arrays",
        KERNELS,
        tests=40,
        environment={"CDC_WATCH_KERNELS": "1"},
    ),
    "more-mysql": Kind(
        "other long tests on MySQL",
        (
            *("-m", "long", "tests/sources/mysql", "tests/consistency/mysql"),
            "--ignore=tests/sources/mysql/chunking/test_key_types.py",
        ),
        tests=4,
    ),
    "more-postgres": Kind(
        "other long tests on PostgreSQL",
        (
            *("-m", "long", "tests/sources/postgres", "tests/consistency/postgres"),
            "--ignore=tests/consistency/postgres/test_ddl.py",
        ),
        tests=4,
    ),
    "more-contract": Kind("other long tests on both databases", ("-m", "long", "tests/contract"), tests=4),
    "more": Kind(
        "other long tests",
        (
            *("-m", "long", "tests"),
            *(
                f"--ignore=tests/{name}"
                for name in ("chaos", "consistency", "contract", "dags", "harness", "sources", "wheel")
            ),
            "--ignore=tests/jobs/runtime/test_cluster.py",
            "--ignore=tests/jobs/runtime/test_cluster_losses.py",
        ),
        tests=4,
    ),
    "cluster": Kind("executors on a cluster", ("tests/jobs/runtime/test_cluster.py",), tests=0, weight=1),
    "cluster-losses": Kind(
        "a cluster that loses a worker, its master or an executor",
        ("tests/jobs/runtime/test_cluster_losses.py",),
        weight=1,
    ),
    "dags": Kind(
        "whole DAG runs",
        ("-m", "long", "tests/dags", *(f"--ignore=tests/dags/test_{name}.py" for name in AIRFLOWS)),
        weight=3,
    ),
    "airflow": Kind(
        "nights and backfills in an Airflow with all components, and the loss of its components in the middle of a run",
        ("tests/dags/test_nightly.py", "tests/dags/test_backfill.py", "tests/dags/test_lost_airflow.py"),
        weight=1,
    ),
    "browser": Kind("a user of Airflow's UI, in a browser", ("tests/dags/test_browser.py",), tests=0, weight=1),
    "benches": Kind("the benches on tiny tables", ("-m", "long", "tests/harness/test_bench.py"), weight=1),
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
"""The pieces of `--fixed`, the longest first."""


def command(name: str, seed: int) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of pytest for a piece of work, and its additional environment variables."""
    kind = KINDS[name]
    arguments = ["-q", "-rf", f"--hypothesis-seed={seed}", "-p", "no:cacheprovider", *kind.arguments]
    variables: dict[str, Any] = {"CDC_SOAK_SEED": seed, "CDC_SOAK_TESTS": kind.tests, **kind.environment}
    return arguments, {variable: str(value) for variable, value in variables.items()}
