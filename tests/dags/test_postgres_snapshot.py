"""The main job on PostgreSQL through Airflow and Spark, with concurrent writers. Nothing is left on the server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.ledger import FIRST
from harness.dag_runner import DagRunner, DagRunResult
from harness.postgres_server import PostgresServer
from tests.dags.watching import STEPS, files_of, in_background, rows_of

PASSWORD = "c0rrect-h0rse:battery/@"
ACCOUNTS = 300
AT = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

TABLES = ["bank.accounts", "bank.entries", "bank.visits"]
CLEARED = ["lock_and_record", "preflight"]
"""`test_mysql_snapshot` clears those of Spark, too, and ``tests/contract/test_run.py`` does every step twice."""


@pytest.fixture(scope="module")
def bank(postgres: PostgresServer) -> dict[str, Any]:
    """Money that only moves, an entry and a visit for each move; returns the fields of a connection to it."""
    postgres.query("CREATE DATABASE bank")
    postgres.query(
        f"""
        CREATE ROLE bank_owner;
        CREATE ROLE bank_copier LOGIN REPLICATION PASSWORD '{PASSWORD}' IN ROLE bank_owner;
        GRANT CREATE ON DATABASE bank TO bank_copier;
        CREATE SCHEMA bank AUTHORIZATION bank_owner;
        SET ROLE bank_owner;
        CREATE TABLE bank.accounts (id int PRIMARY KEY, balance numeric(12,2) NOT NULL);
        CREATE TABLE bank.entries (account int, memo text, PRIMARY KEY (account, memo)) PARTITION BY RANGE (account);
        CREATE TABLE bank.entries_low PARTITION OF bank.entries FOR VALUES FROM (0) TO (100);
        CREATE TABLE bank.entries_high PARTITION OF bank.entries FOR VALUES FROM (100) TO (1000);
        CREATE TABLE bank.visits (account int NOT NULL);
        ALTER TABLE bank.accounts REPLICA IDENTITY FULL;
        ALTER TABLE bank.entries REPLICA IDENTITY FULL;
        ALTER TABLE bank.entries_low REPLICA IDENTITY FULL;
        ALTER TABLE bank.entries_high REPLICA IDENTITY FULL;
        ALTER TABLE bank.visits REPLICA IDENTITY FULL;
        INSERT INTO bank.accounts SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) i;
        """,
        database="bank",
    )
    return {
        "host": postgres.host,
        "port": postgres.port,
        "login": "bank_copier",
        "password": PASSWORD,
        "schema": "bank",
    }


@contextmanager
def transfers(postgres: PostgresServer) -> Iterator[None]:
    with postgres.connect(database="bank", autocommit=False) as connection:

        def move(number: int) -> None:
            payer, payee = 1 + number * 7 % ACCOUNTS, 1 + number * 11 % ACCOUNTS
            connection.execute("UPDATE bank.accounts SET balance = balance - 1 WHERE id = %s", [payer])
            connection.execute("UPDATE bank.accounts SET balance = balance + 1 WHERE id = %s", [payee])
            connection.execute("INSERT INTO bank.entries VALUES (%s, gen_random_uuid())", [payer])
            connection.execute("INSERT INTO bank.visits VALUES (%s)", [payer])
            connection.commit()

        with in_background(move, 0.02):
            yield


def left_over(postgres: PostgresServer) -> list[tuple[Any, ...]]:
    """Our slots and publications."""
    return postgres.query(
        "SELECT slot_name::text FROM pg_replication_slots WHERE NOT temporary "
        "UNION ALL SELECT pubname::text FROM pg_publication",
        database="bank",
    )


@dataclass
class Copied:
    first: DagRunResult
    again: DagRunResult
    lake: Path
    files_before: dict[str, str]
    positions: list[str]
    kept: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def copied(
    dag_runner: DagRunner, bank: dict[str, Any], postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Copied:
    """A run, and then its tasks that touch the server's slots cleared and run again, while money keeps moving."""
    lake = tmp_path_factory.mktemp("lake")
    connections = {"cdc_postgres": {"conn_type": "cdc_postgres", **bank}}
    conf = {"tables": ["bank.*"], "target": lake.as_uri(), "chunk_rows": 100}
    with transfers(postgres):
        before = postgres.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        first = dag_runner.run("postgres_snapshot", conf, at=AT, connections=connections)
        after = postgres.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        kept = left_over(postgres)
        files = files_of(lake)
        again = dag_runner.rerun("postgres_snapshot", AT, CLEARED, connections=connections)
    return Copied(first, again, lake, files, [before, after], kept)


def test_every_task_succeeds_at_once(copied: Copied) -> None:
    assert copied.first.states == dict.fromkeys(STEPS, "success"), copied.first.log[-8000:]
    assert copied.first.tries == dict.fromkeys(STEPS, 1)


def test_xcoms_are_those_of_the_contract(copied: Copied) -> None:
    xcoms = {task: set(values) for task, values in copied.first.xcoms.items()}
    assert xcoms == {
        "preflight": {"plan", "options", "skipped", "missed_past", "may_miss_past", "request"},
        "lock_and_record": {"run_uri", "initial_lsn"},
        "snapshot": {"_link_ReportLink", "snapshot_upper", "counts"},
        "extract_delta": {"_link_ReportLink", "counts"},
        "consolidate": {
            "_link_ReportLink",
            "published",
            "position",
            "latest",
            "skipped",
            "removed",
            "superseded",
            "feed_gaps",
            "counts",
        },
    }
    plans = {plan["table"]: plan["consistency"] for plan in copied.first.xcoms["preflight"]["plan"]}
    assert plans == dict(zip(TABLES, ["watermark", "watermark", "exported"], strict=True))


def test_positions_bound_the_run(copied: Copied) -> None:
    values = copied.first.xcoms
    initial = Lsn.parse(values["lock_and_record"]["initial_lsn"])
    upper = Lsn.parse(values["snapshot"]["snapshot_upper"])
    before, after = map(Lsn.parse, copied.positions)
    assert before < initial < upper < after
    for table in TABLES:
        latest = json.loads((copied.lake / table / "_latest.json").read_text())
        assert latest["initial_lsn"] == str(initial)
        assert latest["rows"] == len(rows_of(values, table))


def test_all_tables_are_as_they_were_at_one_point(copied: Copied) -> None:
    values = copied.first.xcoms
    balances = dict(rows_of(values, "bank.accounts"))
    assert len(balances) == ACCOUNTS
    assert sum(balances.values()) == 100 * ACCOUNTS
    entries = Counter(account for account, _ in rows_of(values, "bank.entries"))
    assert entries == Counter(account for (account,) in rows_of(values, "bank.visits"))
    assert all(values["consolidate"]["counts"]["rewound"][table] > 0 for table in TABLES)


def test_a_published_run_leaves_no_slot_and_no_publication(copied: Copied) -> None:
    assert copied.kept == []


def test_clearing_tasks_of_a_finished_run_changes_nothing(copied: Copied, postgres: PostgresServer) -> None:
    assert copied.again.states == dict.fromkeys(STEPS, "success"), copied.again.log[-8000:]
    assert copied.again.tries == {step: 2 if step in CLEARED else 1 for step in STEPS}
    assert files_of(copied.lake) == copied.files_before
    assert [copied.again.xcoms[task] for task in STEPS[1:]] == [copied.first.xcoms[task] for task in STEPS[1:]]
    assert left_over(postgres) == []


def test_password_is_nowhere(copied: Copied, dag_runner: DagRunner) -> None:
    # Also not percent-encoded, as in the URI that ADBC takes.
    for secret in (PASSWORD, "c0rrect-h0rse"):
        files = [path for place in (dag_runner.home, copied.lake) for path in place.rglob("*") if path.is_file()]
        assert [str(path) for path in files if secret.encode() in path.read_bytes()] == []
        for result in (copied.first, copied.again):
            assert secret not in repr((result.xcoms, result.rendered)) + result.log


@pytest.mark.long
def test_a_run_that_fails_for_good_leaves_no_slot_either(
    dag_runner: DagRunner, bank: dict[str, Any], postgres: PostgresServer, tmp_path: Path
) -> None:
    seen: list[tuple[Any, ...]] = []

    def alter(number: int) -> None:
        # The position is fixed.
        if not seen and any(tmp_path.rglob(FIRST)):
            seen.extend(left_over(postgres))
            postgres.query("ALTER TABLE bank.visits ADD later int", database="bank")

    with in_background(alter, 0.02):
        failed = dag_runner.run(
            "postgres_snapshot",
            {"tables": ["bank.*"], "target": tmp_path.as_uri()},
            connections={"cdc_postgres": {"conn_type": "postgres", **bank}},
        )
    assert failed.states["lock_and_record"] == "success", failed.log[-8000:]
    assert failed.states["snapshot"] == "failed", failed.log[-8000:]
    assert failed.tries["snapshot"] == 1, "an error that no retry can fix was retried"
    assert "bank.visits: its columns have changed (later)" in failed.log
    assert len(seen) == 2
    assert left_over(postgres) == []
    assert not list(tmp_path.glob("bank.*"))


@pytest.mark.long
def test_a_slot_that_was_asked_for_stays_at_the_copy_s_position(
    dag_runner: DagRunner, bank: dict[str, Any], postgres: PostgresServer, tmp_path: Path
) -> None:
    kept = dag_runner.run(
        "postgres_snapshot",
        {"tables": ["bank.accounts"], "target": tmp_path.as_uri(), "keep_slot": True, "consistency": "exported"},
        connections={"cdc_postgres": {"conn_type": "cdc_postgres", **bank}},
    )
    assert set(kept.states.values()) == {"success"}, kept.log[-8000:]
    ((name, at),) = postgres.query(
        "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary"
    )
    postgres.query("SELECT pg_drop_replication_slot(%s)", (name,))
    postgres.query(f"DROP PUBLICATION {name}", database="bank")
    assert at == kept.xcoms["lock_and_record"]["initial_lsn"]
