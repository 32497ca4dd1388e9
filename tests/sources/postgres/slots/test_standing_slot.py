"""The standing slot: created once, kept from run to run, advanced only as far as allowed, recreated when lost."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.storage.records import digest_of
from airflow_provider_cdc.errors import ConfigurationError, LockNotGranted, TransientError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.standing_record import now, store
from airflow_provider_cdc.sources.postgres.steps import standing_slot
from harness.postgres_binaries import installations
from tests.conftest import PostgresFactory
from tests.sources.postgres.standing import OPTIONS, RUN_ID, Kept

OTHER = "CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL"


def test_the_slot_is_made_once_and_stays_where_it_is(kept: Kept) -> None:
    kept.keep("stock")
    first, record = kept.slot, kept.record
    kept.run("UPDATE stock SET v = v + 1")
    kept.keep("stock")
    assert (kept.slot.confirmed, kept.record) == (first.confirmed, record)
    assert record.tables["public.stock"].position == str(first.confirmed)


def test_the_past_of_a_table_that_joins_later_begins_then(kept: Kept) -> None:
    kept.keep("stock")
    kept.run(OTHER)
    before = Lsn.parse(kept.here())
    kept.keep("stock", "other")
    joined = kept.record.tables
    assert Lsn.parse(joined["public.stock"].position) == kept.slot.confirmed
    assert Lsn.parse(joined["public.other"].position) >= before


@pytest.mark.slow
def test_a_transaction_that_wrote_before_a_table_joined_ends_before_its_past_begins(kept: Kept) -> None:
    # The log has its later changes, but not its earlier ones.
    kept.keep("stock")
    kept.run(OTHER)
    with kept.server.connect(database=kept.database, autocommit=False) as writer:
        writer.execute("INSERT INTO other VALUES (1)")
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(kept.keep, "stock", "other")
            time.sleep(1)
            assert not joining.done()
            before = kept.here()
            writer.commit()
            joining.result(timeout=60)
    assert Lsn.parse(kept.record.tables["public.other"].position) > kept.slot.confirmed  # type: ignore[operator]
    kept.run("DELETE FROM other")
    assert kept.refusals(before, "other")


def test_transactions_hold_up_what_joins_for_a_bounded_time(kept: Kept) -> None:
    kept.options = replace(kept.options, lock=LockPolicy(1, 1, 0.0, False, 1))
    with kept.server.connect(database=kept.database, autocommit=False) as writer:
        writer.execute("INSERT INTO stock VALUES (99, 0)")
        with pytest.raises(LockNotGranted):
            kept.keep("stock")
    # The slot is dropped again, because no record would name it.
    assert kept.server.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (kept.name,)) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("SELECT pg_drop_replication_slot('{name}')", "it was dropped"),
        ("DROP PUBLICATION {name}", "its publication"),
        ("COMMENT ON PUBLICATION {name} IS 'mine'", "its publication, or the comment"),
        # Before PostgreSQL 18, the log cannot be decoded where the publication had another name.
        (
            """ALTER PUBLICATION {name} RENAME TO other; UPDATE stock SET v = 1;
            ALTER PUBLICATION other RENAME TO {name}""",
            "its publication was altered, renamed or created again",
        ),
        (
            "ALTER PUBLICATION {name} OWNER TO pg_monitor; ALTER PUBLICATION {name} OWNER TO postgres",
            "its publication was altered",
        ),
        (
            "SELECT pg_replication_slot_advance('{name}', pg_current_wal_flush_lsn())",
            "another client advanced it",
        ),
        (
            """SELECT pg_drop_replication_slot('{name}');
            SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)""",
            "another client",
        ),
    ],
)
def test_a_past_that_was_lost_is_said_loudly_and_begins_anew(
    kept: Kept, caplog: pytest.LogCaptureFixture, harm: str, said: str
) -> None:
    kept.keep("stock")
    beginning = kept.record.beginning
    kept.here()
    kept.run(*harm.format(name=kept.name).replace(";\n", "; ").split("; "))
    before = Lsn.parse(kept.here())
    with caplog.at_level(logging.WARNING):
        kept.keep("stock")
    assert "THE PAST IS LOST" in caplog.text
    assert said in caplog.text
    assert kept.record.beginning != beginning
    assert Lsn.parse(kept.record.tables["public.stock"].position) >= before
    kept.run("UPDATE stock SET v = 2")
    kept.position_of(kept.clock(), "stock")
    kept.give_up(48)


def test_a_record_of_another_server_counts_for_nothing(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.keep("stock")
    record = kept.record
    with session(kept.source.settings) as connection:
        store(connection, kept.name, replace(record, server=record.server | {"system_identifier": "1"}))
    kept.keep("stock")
    assert "system_identifier" in caplog.text
    assert kept.record.beginning != record.beginning


def test_the_slot_gives_up_what_is_older_and_nothing_else(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep("stock")
    begun = kept.slot.confirmed
    kept.run("UPDATE stock SET v = 1")
    kept.give_up(hours=1)
    assert kept.slot.confirmed == begun
    kept.run("UPDATE stock SET v = 2")
    between = kept.clock()
    kept.run("UPDATE stock SET v = 3")
    # The clock cannot be advanced by an hour, so the hour is set to end at once.
    expected = kept.position_of(between, "stock")
    micros = int(between.timestamp() * 1_000_000)
    monkeypatch.setattr(
        "airflow_provider_cdc.sources.postgres.steps.standing_slot.now", lambda _: micros + 3_600_000_000
    )
    kept.give_up(hours=1)
    assert str(kept.slot.confirmed) == expected
    assert kept.position_of(between, "stock") == expected
    (problem,) = kept.refusals(str(begun), "stock")
    assert "before the standing slot" in problem.what


def test_a_copy_that_is_read_in_full_between_others_is_rolled_forward_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who reads one night's tables in full by hand wants the next night to be as short as the others."""
    kept.run(OTHER)
    kept.keep("stock", "other")
    day, days = 24 * 3_600_000_000, 0
    monkeypatch.setattr(standing_slot, "now", lambda connection: now(connection) + days * day)

    def night(refresh: str, *tables: str, lake: str = "lake") -> Lsn:
        nonlocal days
        days += 1
        kept.run("UPDATE stock SET v = v + 1")
        copies = dict.fromkeys((f"public.{table}" for table in tables), kept.here())
        kept.give_up(1, copies, lake, refresh=refresh)
        return Lsn.parse(next(iter(copies.values())))

    def stands() -> Lsn:
        found = kept.slot.confirmed
        assert found is not None
        return found

    night("full", "stock")
    first = night("auto", "stock")
    assert stands() <= first
    second = night("full", "stock")
    night("full", "stock", lake="another")
    night("full", "other")
    assert stands() <= second, "the next night could not begin there"
    wanted = {(one.tables, one.wanted) for one in kept.record.copies[digest_of("lake")[:12]]}
    assert wanted == {(("public.stock",), True), (("public.other",), False)}
    assert not any(one.wanted for one in kept.record.copies[digest_of("another")[:12]])
    # Unless no run has used the lake for a long time.
    days += 8
    night("full", "stock")
    assert not any(one.wanted for known in kept.record.copies.values() for one in known)


def test_runs_at_one_time_make_one_slot(kept: Kept) -> None:
    kept.run(OTHER)
    barrier = threading.Barrier(4)

    def run(table: str) -> None:
        barrier.wait()
        kept.keep(table)

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(run, table) for table in ("stock", "other", "stock", "other")]:
            one.result(timeout=60)
    assert set(kept.record.tables) == {"public.stock", "public.other"}
    names = kept.server.query(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT temporary", (kept.database,)
    )
    assert names == [(kept.name,)]


def test_the_end_of_a_run_drops_its_own_slot_alone(kept: Kept) -> None:
    kept.keep("stock")
    kept.record_at(kept.here(), "stock")
    kept.source.release(RUN_ID)
    names = kept.server.query(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT temporary", (kept.database,)
    )
    assert names == [(kept.name,)]
    assert kept.ask("SELECT count(*) FROM pg_publication") == 1


def test_a_run_in_progress_bears_what_becomes_of_the_standing_slot(kept: Kept) -> None:
    kept.keep("stock")
    point = kept.here()
    begun = kept.record_at(point, "stock")
    # Another table joins, the slot moves on, and at last it is dropped.
    kept.run(OTHER)
    kept.keep("stock", "other")
    kept.run(f"SELECT pg_replication_slot_advance('{kept.name}', pg_current_wal_flush_lsn())")
    kept.source.check_identity(begun.identity, begun.position)
    kept.run(f"SELECT pg_drop_replication_slot('{kept.name}')")
    kept.source.check_identity(begun.identity, begun.position)
    # Another run starts a new past.
    kept.keep("stock", "other")
    kept.source.check_identity(begun.identity, begun.position)


def test_the_application_is_refused_nothing(kept: Kept) -> None:
    kept.run("CREATE TABLE plain (v int)", "CREATE TABLE tree (v int) PARTITION BY RANGE (v)")
    kept.run("CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)", "INSERT INTO tree VALUES (1)")
    kept.keep("stock")
    kept.run("INSERT INTO plain VALUES (1)", "UPDATE plain SET v = 2", "UPDATE tree SET v = 2", "DELETE FROM stock")


def test_what_the_server_refuses_to_change_leaves_the_publication(kept: Kept) -> None:
    kept.run(OTHER)
    kept.keep("stock", "other")
    # What the owner does to it concerns the standing publication as long as that lists it.
    kept.run("ALTER TABLE other REPLICA IDENTITY DEFAULT", "INSERT INTO other VALUES (1)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        kept.run("DELETE FROM other")
    kept.keep("stock")
    kept.run("DELETE FROM other")
    kept.check(kept.here(), "stock")


def test_a_user_to_whom_money_means_something_else_ends_no_past_but_that_of_money(kept: Kept) -> None:
    role = f"banker_{kept.database}"
    kept.run("CREATE TABLE other (v money); ALTER TABLE other REPLICA IDENTITY FULL")
    kept.keep("stock", "other")
    point, beginning = kept.here(), kept.record.beginning
    meaning = "POSIX" if kept.ask("SHOW lc_monetary") == "C" else "C"
    kept.run(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'p'", f"ALTER ROLE {role} SET lc_monetary = '{meaning}'")
    own, kept.source = kept.source, PostgresSource(replace(kept.source.settings, user=role, password="p"))
    kept.keep("stock")
    kept.check(point, "stock")
    (problem,) = kept.refusals(point, "other")
    assert "altered" in problem.what
    kept.source = own
    kept.check(point, "stock", "other")
    assert kept.record.beginning == beginning
    kept.run(f"DROP ROLE {role}")


def test_preflight_says_what_it_costs(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        kept.keep("stock")
        kept.plans("stock")
    assert f"The standing slot {kept.name} keeps" in caplog.text
    assert "has no limit" in caplog.text
    # It is no slot that a run left.
    assert "may be in progress" not in caplog.text


def test_a_publication_of_others_is_left_alone(kept: Kept) -> None:
    settings = kept.source.settings
    named = ConnectionSettings(
        **{
            **{name: getattr(settings, name) for name in ConnectionSettings.__dataclass_fields__},
            "options": {"publication": "theirs"},
        }
    )
    with pytest.raises(ConfigurationError, match="must not name a publication"):
        PostgresSource(named).keep_past(kept.plans("stock"), kept.options)


def test_a_run_that_only_reads_the_slot_counts_as_its_use(postgres_factory: PostgresFactory) -> None:
    """Otherwise the server would give up a slot that is used every night, but advanced only after days."""
    newest = max(one.major for one in installations())
    if newest < 18:
        pytest.skip("no PostgreSQL here gives idle slots up")
    server = postgres_factory({"idle_replication_slot_timeout": "1h"}, newest)
    kept = Kept(server, "postgres")
    kept.run("CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL")
    kept.keep("stock")
    first, since = kept.slot, f"SELECT inactive_since FROM pg_replication_slots WHERE slot_name = '{kept.name}'"
    idle = kept.ask(since)
    kept.run("INSERT INTO stock VALUES (1, 1)")
    kept.keep("stock")
    assert kept.slot.confirmed == first.confirmed
    assert kept.ask(since) > idle
    kept.forget()


@pytest.mark.slow
def test_a_failover_slot_whose_standby_is_away_ends_no_run_that_waits_for_ever(
    postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies are published, and only giving up what is older is left to the next run."""
    newest = max(one.major for one in installations())
    if newest < 17:
        pytest.skip("there are failover slots since PostgreSQL 17")
    server = postgres_factory({}, newest)
    server.query("ALTER SYSTEM SET synchronized_standby_slots = 'away'")
    server.reload()
    kept = Kept(server, "postgres", replace(OPTIONS, lock=replace(OPTIONS.lock, slot_wait_seconds=1)))
    kept.run("SELECT pg_create_physical_replication_slot('away')")
    kept.run("CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL")
    kept.keep("stock")
    with server.connect(replication="database") as administrator:
        administrator.execute(f"ALTER_REPLICATION_SLOT {kept.name} (FAILOVER true)".encode())
    kept.run("INSERT INTO stock VALUES (1, 1)")
    begun = kept.slot.confirmed

    def give_up_after(*hours: int) -> None:
        for more in hours:
            monkeypatch.setattr(
                standing_slot, "now", lambda connection, more=more: now(connection) + more * 3_600_000_000
            )
            kept.give_up(hours=1)

    # Should it wait all the same, that ends.
    ending = threading.Timer(
        20, kept.run, ("ALTER SYSTEM SET synchronized_standby_slots = ''", "SELECT pg_reload_conf()")
    )
    ending.start()
    try:
        with pytest.raises(TransientError, match="the slot is a failover slot"):
            # A server that does not report commit times has a mark for the second one only.
            give_up_after(2, 4)
    finally:
        ending.cancel()
    assert kept.slot.confirmed == begun
    server.query("ALTER SYSTEM RESET synchronized_standby_slots")
    server.reload()
    give_up_after(6)
    assert kept.slot.confirmed != begun
