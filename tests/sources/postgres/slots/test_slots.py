"""Slots and publications: the position that they fix, commits that are logged but not visible, and the release."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import LockNotGranted, LogGone, PreflightError, TransientError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.log.segments import copy_slot
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    mapped_errors,
    query,
    reading_session,
    session,
)
from airflow_provider_cdc.sources.postgres.slots import publications, slots, waits
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.soon import soon
from tests.sources.postgres.backends import background, wait_for
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.reading import create_slot
from tests.sources.postgres.log.reading import settings as settings_of

RUN_ID = "20260101T000000Z-0a1b2c3d"
SLOT = "cdc_20260101t000000z_0a1b2c3d"
QUICK = LockPolicy(wait_seconds=1, tries=1, pause_seconds=0.0, slot_wait_seconds=1)


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresSource:
    postgres.query(
        "CREATE TABLE stock (id int PRIMARY KEY, left_over int); ALTER TABLE stock REPLICA IDENTITY FULL;"
        "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 10) i",
        database=database,
    )
    return PostgresSource(settings_of(postgres, database))


@pytest.fixture
def own(postgres_factory: PostgresFactory) -> PostgresServer:
    """A server whose settings a test may change."""
    return postgres_factory()


def tables_of(settings: ConnectionSettings) -> tuple[Table, ...]:
    with session(settings) as connection:
        return read_tables(connection, [TableName("public", "stock")])


def settle(settings: ConnectionSettings, seconds: float = 1.0) -> None:
    with session(settings) as connection:
        waits.wait_until_visible(settings, connection, seconds)


@pytest.mark.slow
def test_a_commit_that_the_point_contains_and_nobody_sees_yet_is_waited_for(own: PostgresServer) -> None:
    """At the slot's point, all transactions have ended that were running at its last check. A transaction that began
    after that check, and whose commit waits for a standby, is before the point, but reads do not see it yet."""
    own.query(
        "CREATE TABLE stock (id int PRIMARY KEY, left_over int); ALTER TABLE stock REPLICA IDENTITY FULL;"
        "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 10) i"
    )
    settings = settings_of(own, "postgres")
    first, second, third = own.connect(autocommit=False), own.connect(autocommit=False), own.connect()
    with background(own) as pool, session(settings) as control:
        publications.create_publication(control, SLOT, tables_of(settings), LockPolicy())
        first.execute("UPDATE stock SET left_over = 1 WHERE id = 1")
        point = pool.submit(create_slot, settings, SLOT, 30)
        wait_for(own, "backend_type = 'walsender' AND wait_event = 'transactionid'")
        second.execute("UPDATE stock SET left_over = 2 WHERE id = 2")
        first.rollback()
        # The server has then checked a second time, and waits for the transactions that it found.
        wait_for(own, f"backend_type = 'walsender' AND {second.info.backend_pid} = ANY(pg_blocking_pids(pid))")
        own.set_standbys("nobody")
        committing = pool.submit(third.execute, "UPDATE stock SET left_over = 3 WHERE id = 3")
        wait_for(own, "wait_event = 'SyncRep'")
        second.rollback()
        point.result(60)
        seen = own.query("SET synchronous_commit = local; SELECT left_over FROM stock WHERE id = 3")
        assert seen == [(0,)], "the commit is visible: the test provokes nothing"
        told = own.query(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s)",
            (SLOT, SLOT),
        )
        assert told == [(0,)], "the commit lies after the point: the test provokes nothing"
        with pytest.raises(LockNotGranted, match="SyncRep"):
            settle(settings)
        own.set_standbys("")
        committing.result(60)
        settle(settings)
    slots.drop(settings, SLOT, SLOT)


@pytest.mark.slow
def test_reads_begin_when_all_commits_before_their_position_are_visible(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same commit as in the test before. It becomes visible when the source waits for it."""
    own.query(
        "CREATE TABLE stock (id int PRIMARY KEY, left_over int); ALTER TABLE stock REPLICA IDENTITY FULL;"
        "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 10) i"
    )
    source = PostgresSource(settings_of(own, "postgres"))
    wait_until_visible = waits.wait_until_visible

    def answered(*arguments: Any) -> None:
        own.set_standbys("")
        wait_until_visible(*arguments)

    def fixed() -> list[tuple[Any, ...]]:
        source.record_initial([TablePlan(TableName("public", "stock"), "watermark", "")], LockPolicy(), RUN_ID)
        return own.query("SET synchronous_commit = local; SELECT left_over FROM stock WHERE id = 3")

    monkeypatch.setattr(waits, "wait_until_visible", answered)
    first, second, third = own.connect(autocommit=False), own.connect(autocommit=False), own.connect()
    with background(own) as pool:
        first.execute("UPDATE stock SET left_over = 1 WHERE id = 1")
        rows = pool.submit(fixed)
        wait_for(own, "backend_type = 'walsender' AND wait_event = 'transactionid'")
        second.execute("UPDATE stock SET left_over = 2 WHERE id = 2")
        first.rollback()
        wait_for(own, f"backend_type = 'walsender' AND {second.info.backend_pid} = ANY(pg_blocking_pids(pid))")
        own.set_standbys("nobody")
        committing = pool.submit(third.execute, "UPDATE stock SET left_over = 3 WHERE id = 3")
        wait_for(own, "wait_event = 'SyncRep'")
        second.rollback()
        assert rows.result(60) == [(3,)]
        committing.result(60)


@pytest.mark.slow
def test_another_slot_in_use_does_not_hide_an_open_transaction(own: PostgresServer) -> None:
    """On servers before 15.8 and 16.4, a new slot may begin with the state that another slot saved while a transaction
    was open. The new slot then never decodes the earlier changes of that transaction."""
    own.query(
        "CREATE TABLE stock (id int PRIMARY KEY, left_over int); ALTER TABLE stock REPLICA IDENTITY FULL;"
        "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 10) i"
    )
    own.query("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    settings = settings_of(own, "postgres")
    with (
        session(settings) as control,
        own.connect(autocommit=False) as writing,
        closing(own.connect(replication="database")) as theirs,
    ):
        publications.create_publication(control, SLOT, tables_of(settings), LockPolicy())
        theirs.pgconn.send_query(
            f"START_REPLICATION SLOT theirs LOGICAL 0/0 (proto_version '1', publication_names '{SLOT}')".encode()
        )
        wait_for(own, "backend_type = 'walsender' AND wait_event = 'WalSenderWaitForWAL'")
        writing.execute("UPDATE stock SET left_over = 1 WHERE id = 1")
        for _ in range(10):
            # Their slot may be the first to read which transactions are open, and to save that to disk.
            with pytest.raises(LockNotGranted):
                create_slot(settings, SLOT, 0.3)
        writing.rollback()


def test_a_transaction_that_is_idle_or_prepared_is_not_waited_for(
    postgres: PostgresServer, database: str, source: PostgresSource
) -> None:
    with (
        postgres.connect(database=database, autocommit=False) as idle,
        postgres.connect(database=database, autocommit=False) as preparing,
    ):
        idle.execute("UPDATE stock SET left_over = 1 WHERE id = 1")
        preparing.execute("UPDATE stock SET left_over = 2 WHERE id = 2")
        preparing.execute("PREPARE TRANSACTION 'settled'")
        try:
            settle(source.settings, 30)
        finally:
            preparing.rollback()
            postgres.query("ROLLBACK PREPARED 'settled'", database=database)


def test_a_statement_at_work_is_waited_for_and_named(
    postgres: PostgresServer, database: str, source: PostgresSource
) -> None:
    with (
        postgres.connect(database=database, autocommit=False) as holding,
        postgres.connect(database=database) as writing,
        ThreadPoolExecutor(1) as pool,
    ):
        holding.execute("SELECT pg_advisory_lock(7)")
        try:
            work = "WITH w AS (UPDATE stock SET left_over = 1 RETURNING 1) SELECT pg_advisory_lock(7) FROM w LIMIT 1"
            running = pool.submit(writing.execute, work)
            wait_for(postgres, "query LIKE 'WITH w AS%%' AND backend_xid IS NOT NULL AND wait_event = 'advisory'")
            with pytest.raises(LockNotGranted, match=f"session {writing.info.backend_pid} of postgres, active"):
                settle(source.settings, 0.2)
        finally:
            holding.execute("SELECT pg_advisory_unlock(7)")
        settle(source.settings, 60)
        running.result()


@pytest.mark.parametrize("told", ["on", "off"])
def test_a_prepared_transaction_whose_commit_waits_for_a_standby_is_waited_for(own: PostgresServer, told: str) -> None:
    own.query("CREATE TABLE stock (id int PRIMARY KEY)")
    telling = f"-c track_activities={told}"
    with (
        own.connect(autocommit=False) as preparing,
        own.connect(options=telling) as deciding,
        background(own) as pool,
    ):
        preparing.execute("INSERT INTO stock VALUES (1)")
        preparing.execute("PREPARE TRANSACTION 'both'")
        preparing.rollback()
        own.set_standbys("nobody")
        committing = pool.submit(deciding.execute, "COMMIT PREPARED 'both'")
        wait_for(own, "wait_event = 'SyncRep'")
        with pytest.raises(LockNotGranted, match="both"):
            settle(settings_of(own, "postgres"), 0.5)
        own.set_standbys("")
        committing.result()
        settle(settings_of(own, "postgres"))


@pytest.mark.parametrize("blocker", ["INSERT INTO stock VALUES (99, 9)", "prepared"])
def test_what_holds_up_the_position_is_named_and_nothing_is_left(
    postgres: PostgresServer, database: str, source: PostgresSource, blocker: str
) -> None:
    plans = source.preflight(["public.stock"])
    with postgres.connect(database=database, autocommit=False) as writing:
        writing.execute("INSERT INTO stock VALUES (99, 9)")
        if blocker == "prepared":
            writing.execute("PREPARE TRANSACTION 'forgotten'")
            writing.rollback()
        started = time.monotonic()
        match = "prepared transaction 'forgotten'" if blocker == "prepared" else "idle in transaction"
        with pytest.raises(LockNotGranted, match=match):
            source.record_initial(plans, QUICK, RUN_ID)
        assert time.monotonic() - started < 60
        if blocker == "prepared":
            postgres.query("ROLLBACK PREPARED 'forgotten'", database=database)
    assert postgres.query("SELECT 1 FROM pg_replication_slots UNION ALL SELECT 1 FROM pg_publication") == []


@pytest.mark.slow
def test_what_the_slot_waits_for_is_named_while_it_waits(
    postgres: PostgresServer,
    database: str,
    source: PostgresSource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has its own time limit: a lock would not have been waited for that long."""
    monkeypatch.setattr(waits, "NAME_SECONDS", 0.3)
    plans = source.preflight(["public.stock"])
    policy = LockPolicy(wait_seconds=1, tries=1, pause_seconds=0.0, slot_wait_seconds=120)
    with (
        ThreadPoolExecutor(1) as pool,
        postgres.connect(database=database, autocommit=False) as writing,
        caplog.at_level(logging.INFO),
    ):
        writing.execute("INSERT INTO stock VALUES (99, 9)")
        recording = pool.submit(source.record_initial, plans, policy, RUN_ID)
        deadline = time.monotonic() + 60
        named = f"session {writing.info.backend_pid} of postgres, idle in transaction"
        while named not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        assert named in caplog.text
        time.sleep(1.2)
        assert not recording.done()
        writing.commit()
        source.discard(recording.result(60).identity)


def test_a_wait_is_cut_short_although_it_begins_late(
    postgres: PostgresServer, database: str, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request to cancel it may come before the server has it at all."""

    def late(connection: Connection, sql: str, arguments: Any = None) -> object:
        if sql.startswith("CREATE_REPLICATION_SLOT"):
            time.sleep(1)
        return query(connection, sql, arguments)

    monkeypatch.setattr(waits, "query", late)
    with postgres.connect(database=database, autocommit=False) as writing:
        writing.execute("INSERT INTO stock VALUES (99, 9)")
        with pytest.raises(LockNotGranted, match="idle in transaction"):
            create_slot(source.settings, SLOT, 0.2)
    assert postgres.query("SELECT 1 FROM pg_replication_slots") == []


def names_on(server: PostgresServer, database: str) -> tuple[set[str], set[str]]:
    """Of the slots and of the publications."""
    slots_there = {name for (name,) in server.query("SELECT slot_name FROM pg_replication_slots")}
    return slots_there, {name for (name,) in server.query("SELECT pubname FROM pg_publication", database=database)}


def test_what_an_earlier_try_left_is_discarded_once_a_later_one_counts(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    database = source.settings.database
    plans = source.preflight(["public.stock"])
    first = source.record_initial(plans, LockPolicy(), RUN_ID)
    second = source.record_initial(plans, LockPolicy(), RUN_ID)
    assert first.position != second.position
    made = {first.identity.slot, second.identity.slot}
    assert len(made) == 2
    assert names_on(postgres, database) == (made, made)
    assert (first.superseded, len(second.superseded)) == ((), 1)
    source.discard(second.superseded[0])
    left = {second.identity.slot}
    assert names_on(postgres, database) == (left, left)
    source.check_identity(second.identity, second.position)
    source.release(RUN_ID)
    assert names_on(postgres, database) == (set(), set())


def test_an_older_try_that_ends_late_keeps_what_the_newer_one_made(
    postgres: PostgresServer, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If names were the same, it would drop what the newer try rests on when it cleans up."""
    plans = source.preflight(["public.stock"])
    newer: list[InitialPoint] = []

    def be_overtaken_and_fail(*arguments: object) -> None:
        monkeypatch.undo()
        newer.append(source.record_initial(plans, LockPolicy(), RUN_ID))
        raise ZeroDivisionError

    monkeypatch.setattr(waits, "wait_until_visible", be_overtaken_and_fail)
    with pytest.raises(ZeroDivisionError):
        source.record_initial(plans, LockPolicy(), RUN_ID)
    (counts,) = newer
    source.check_identity(counts.identity, counts.position)
    left = {counts.identity.slot}
    assert names_on(postgres, source.settings.database) == (left, left)
    source.release(RUN_ID)


def test_what_an_older_version_made_is_released_and_nothing_of_another_run(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    database = source.settings.database
    names = [SLOT, f"{SLOT}_0123abcd", f"{SLOT}_0123abcd_0123abcd", f"{SLOT}_shop", f"{SLOT}0"]
    for name in names:
        postgres.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')", database=database)
        postgres.query(f"CREATE PUBLICATION {name}", database=database)
    source.release(RUN_ID)
    assert names_on(postgres, database) == (set(names[2:]), set(names[2:]))
    for name in names[2:]:
        slots.drop(source.settings, name, name)


def test_a_slot_that_cannot_be_dropped_does_not_keep_the_others_of_its_run(
    postgres: PostgresServer, database: str, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user reads from an earlier try's slot, and we may not end that session."""
    monkeypatch.setattr(slots, "DROP_SECONDS", 0)
    drop, busy = slots._drop_slot, f"{SLOT}_00000000"
    monkeypatch.setattr(slots, "_drop_slot", lambda connection, name: 1 if name == busy else drop(connection, name))
    for name in (busy, f"{SLOT}_11111111"):
        create_slot(source.settings, name, 5)
    with pytest.raises(TransientError, match=f"{busy}: a session"):
        slots.release(source.settings, RUN_ID)
    assert postgres.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database,)) == [(busy,)]
    monkeypatch.undo()
    slots.release(source.settings, RUN_ID)
    assert not postgres.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database,))


def test_release_ends_who_reads_from_the_slot_and_can_be_repeated(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), RUN_ID)
    slot = initial.identity.slot
    with closing(postgres.connect(database=source.settings.database, replication="database")) as reader:
        reader.pgconn.send_query(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{slot}')".encode()
        )
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        soon(lambda: postgres.query(active, (slot,)), [(True,)])
        source.discard(initial.identity)
    assert postgres.query("SELECT 1 FROM pg_replication_slots") == []
    source.discard(initial.identity)


def test_release_leaves_a_publication_that_was_there_before(postgres: PostgresServer, source: PostgresSource) -> None:
    database = source.settings.database
    postgres.query("CREATE PUBLICATION lake FOR TABLE stock", database=database)
    mine = PostgresSource(ConnectionSettings(**{**vars(source.settings), "options": {"publication": "lake"}}))
    initial = mine.record_initial(mine.preflight(["public.stock"]), LockPolicy(), RUN_ID)
    assert postgres.query("SELECT pubname FROM pg_publication", database=database) == [("lake",)]
    mine.check_identity(initial.identity, initial.position)
    mine.discard(initial.identity)
    assert postgres.query("SELECT pubname FROM pg_publication", database=database) == [("lake",)]


def test_preflight_tells_whose_a_slot_is_and_how_to_drop_it_only_where_no_run_can_use_it(
    source: PostgresSource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "nightly")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "scheduled__2026")
    plans = source.preflight(["public.stock"])
    initial = source.record_initial(plans, LockPolicy(), RUN_ID)
    slot = initial.identity.slot

    def told() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            source.preflight(["public.stock"])
        return "\n".join(line for line in caplog.messages if slot in line)

    # The run may be in progress.
    assert f"slot {slot} keeps" in told()
    assert "made for run scheduled__2026 of DAG nightly at 20" in told()
    assert "DROP" not in told()
    assert "pg_drop_replication_slot(" not in told()
    slots.drop(source.settings, slot)
    assert f'No run can use this publication any more: DROP PUBLICATION "{slot}"' in told()
    source.discard(initial.identity)
    assert told() == ""


def test_a_slot_that_lost_its_log_may_be_dropped(
    postgres_factory: PostgresFactory, caplog: pytest.LogCaptureFixture
) -> None:
    own = postgres_factory({"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    own.query("CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL")
    source = PostgresSource(settings_of(own, "postgres"))
    slot = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), RUN_ID).identity.slot
    for _ in range(4):
        own.query("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) FROM generate_series(1, 16)")
        own.query("SELECT pg_switch_wal()")
        own.query("CHECKPOINT")
    with caplog.at_level(logging.WARNING):
        source.preflight(["public.stock"])
    assert (
        f"has lost its log. No run can use this slot any more: SELECT pg_drop_replication_slot('{slot}')" in caplog.text
    )
    # The server may remove the log after a step has checked the slot.
    with session(source.settings) as connection:
        assert not slots.begins(connection, slot)
    with reading_session(source.settings) as reading, mapped_errors(slot), pytest.raises(LogGone, match="reserve WAL"):
        copy_slot(reading, slot, Lsn(0))


def test_what_a_run_left_is_found_by_its_id_alone(postgres: PostgresServer, source: PostgresSource) -> None:
    """The run's manifest was never written, so its identity is unknown."""
    initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), RUN_ID)
    source.release(RUN_ID[:-1] + "e")
    assert postgres.query("SELECT slot_name FROM pg_replication_slots") == [(initial.identity.slot,)]
    source.release(RUN_ID)
    assert postgres.query("SELECT 1 FROM pg_replication_slots UNION ALL SELECT 1 FROM pg_publication") == []
    source.release(RUN_ID)


def test_preflight_wants_room_for_the_slots(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory({"max_replication_slots": "1", "max_wal_senders": "1"})
    for table in ("keyed (n int PRIMARY KEY)", "keyless (n int)"):
        server.query(f"CREATE TABLE {table}; ALTER TABLE {table.split()[0]} REPLICA IDENTITY FULL")
    lacking = {"keyed": ["max_replication_slots"], "keyless": ["max_replication_slots", "max_wal_senders"]}
    for name, settings in lacking.items():
        with pytest.raises(PreflightError) as refused:
            PostgresSource(settings_of(server, "postgres")).preflight([f"public.{name}"])
        assert [problem.where for problem in refused.value.problems] == settings


def test_what_a_session_held_that_has_ended_is_not_taken(postgres_factory: PostgresFactory) -> None:
    """The server process goes on for a moment, and holds the slot until it ends."""
    server = postgres_factory({"max_replication_slots": "2", "max_wal_senders": "2"})
    server.query("CREATE TABLE keyless (n int); ALTER TABLE keyless REPLICA IDENTITY FULL")
    ending = server.connect(replication="database")
    ending.execute("CREATE_REPLICATION_SLOT theirs TEMPORARY LOGICAL pgoutput")
    pid = ending.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    ending.close()
    going_on = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    going_on.start()
    assert len(PostgresSource(settings_of(server, "postgres")).preflight(["public.*"])) == 1
    going_on.join()


@pytest.mark.parametrize("run_id", ["20260101T000000Z-0a1b2c3d", "x" * 200, "Ünïcode-ID"])
def test_names_are_ones_that_a_slot_may_have(run_id: str) -> None:
    name = slots.name_of_try(run_id)
    assert len(name) <= 63
    assert name.startswith(f"{slots.name_of(run_id)}_")
    assert name.startswith("cdc_")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert slots.name_of("x" * 200) != slots.name_of("x" * 199 + "y")


CHANGES = {
    "ALTER PUBLICATION p SET (publish = 'insert')": (
        "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')"
    ),
    "ALTER PUBLICATION p DROP TABLE stock": "ALTER PUBLICATION p ADD TABLE stock",
    "DROP PUBLICATION p": "CREATE PUBLICATION p FOR TABLE stock",
}


@pytest.mark.parametrize(("there", "back"), CHANGES.items())
def test_a_publication_that_was_changed_and_changed_back_is_another(
    postgres: PostgresServer, source: PostgresSource, there: str, back: str
) -> None:
    database = source.settings.database
    postgres.query("CREATE PUBLICATION p FOR TABLE stock", database=database)
    with session(source.settings) as connection:
        before = publications.publication_state(connection, "p")
        postgres.query(there, database=database)
        between = publications.publication_state(connection, "p")
        postgres.query(back, database=database)
        assert len({before, between, publications.publication_state(connection, "p")}) == 3


def test_a_lock_on_a_table_makes_the_publication_wait_no_longer_than_allowed(
    postgres: PostgresServer, source: PostgresSource
) -> None:
    with postgres.connect(database=source.settings.database, autocommit=False) as locking:
        locking.execute("LOCK TABLE stock IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(LockNotGranted, match="the lock to publish"), session(source.settings) as control:
            publications.create_publication(control, "p", tables_of(source.settings), QUICK)
