"""Every step checks that the server, its log and the publication are still those with which the run began."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.core.copies.head import Copy, encode_copy
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.facts import Facts, History, HistoryRelation, Trace, history_fields, source_of
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ExactnessError, LogGone, PreflightError, SourceReplaced
from airflow_provider_cdc.jobs.begin.history_of_run import histories_of
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server.timelines import forks
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away
from tests.conftest import PostgresFactory
from tests.consistency.postgres.test_disks_put_back import Disk
from tests.soon import soon
from tests.sources.postgres.log.reading import settings as settings_of

RUN_ID = "20260101T000000Z-00000000"


def begin(server: PostgresServer, database: str) -> tuple[PostgresSource, InitialPoint]:
    server.query("CREATE TABLE stock (id int PRIMARY KEY); ALTER TABLE stock REPLICA IDENTITY FULL", database=database)
    source = PostgresSource(settings_of(server, database))
    return source, source.record_initial(source.preflight(["public.stock"]), LockPolicy(), RUN_ID)


@pytest.fixture
def begun(postgres: PostgresServer, database: str) -> Iterator[tuple[PostgresSource, InitialPoint]]:
    source, initial = begin(postgres, database)
    yield source, initial
    source.discard(initial.identity)


@pytest.mark.slow
def test_the_same_server_is_known_again_after_a_crash_and_unless_its_disk_is_put_back(
    postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    server = postgres_factory()
    disk = Disk(server, tmp_path)
    for number in range(9):
        server.query(f"CREATE TABLE t{number} ()")
    # Ids of transactions that wrote nothing, and for which the server does not flush the log.
    with server.connect() as session:
        for end in ("ROLLBACK", "COMMIT") * 9:
            session.execute(f"BEGIN; SELECT pg_current_xact_id(); {end}")
    source, initial = begin(server, "postgres")
    copies = [Trace(initial.position, initial.identity.mark), Trace(initial.position), Trace(None, "")]
    server.crash()
    source.check_identity(initial.identity, initial.position)
    found = source.relations(initial.identity, initial.position, copies)
    assert [one.relation for one in found] == [HistoryRelation.SAME, HistoryRelation.SAME, HistoryRelation.UNKNOWN]
    disk.put_back()
    source, again = begin(server, "postgres")
    for one in source.relations(again.identity, again.position, copies[:2]):
        assert (one.relation, "the server's log ends at" in one.why) == (HistoryRelation.OTHER, True)
    while Lsn.parse(server.query("SELECT pg_current_wal_lsn()")[0][0]) <= Lsn.expect(initial.position):
        server.query("SELECT pg_switch_wal()")
    (found_by_number, _) = source.relations(again.identity, again.position, copies[:2])
    assert (found_by_number.relation, "transactions" in found_by_number.why) == (HistoryRelation.OTHER, True)


@pytest.mark.slow
def test_a_standby_is_refused_and_a_promoted_one_is_not_the_server_that_the_run_began_on(
    postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    server = postgres_factory()
    _, initial = begin(server, "postgres")
    with server.standby(tmp_path) as standby:
        there = PostgresSource(settings_of(standby, "postgres"))
        with pytest.raises(PreflightError, match="is a standby"):
            there.preflight(["public.*"])
        with pytest.raises(SourceReplaced, match="reaches a standby"):
            there.check_identity(initial.identity, initial.position)
        assert there.take_over(initial.identity, initial.position, ()) == initial.identity
        standby.query("SELECT pg_promote()")
        with pytest.raises(SourceReplaced, match="timeline was 1, here it is 2"):
            there.check_identity(initial.identity, initial.position)
        # The position of the run lies before the fork. Beyond it, the first server went through another history.
        plans = there.preflight(["public.stock"])
        again = there.record_initial(plans, LockPolicy(), RUN_ID)
        lake = Storage(tmp_path.as_uri())
        heads, history, present = open_sink("parquet", lake), History("h", 2), source_of("postgres", again.identity, "")
        (fork,) = forks(there.settings, "2").values()
        assert Lsn.expect(initial.position) <= fork < Lsn.expect(again.position)
        for position in (initial.position, fork):
            assert there.take_over(initial.identity, position, ()).timeline == "2"
        with pytest.raises(SourceReplaced, match=f"a standby took over at {fork}, before the position"):
            there.take_over(initial.identity, Lsn(int(fork) + 1), ())
        there.check_since(initial.identity, initial.position)
        with pytest.raises(SourceReplaced, match=f"a standby took over at {fork}, before the position"):
            there.check_since(initial.identity, Lsn(int(fork) + 1))
        for timeline, position, unproven, number in (
            ("1", initial.position, "", 2),
            ("1", fork, "", 2),
            ("1", Lsn(int(fork) + 1), "", 3),
            ("7", initial.position, "a standby was promoted", 2),
            ("2", initial.position, "", 2),
            ("2", again.position, "", 2),
        ):
            copy = Copy(
                "20260101T000000Z-00000000",
                position=str(position),
                source=present | {"timeline": timeline},
                history=history_fields(history, initial.identity.mark),
            )
            lake.write_json("public.stock/_latest.json", encode_copy(copy))
            (found,) = histories_of(there, heads, lake, plans, again, present, RUN_ID, "").values()
            assert (found.unproven.startswith(unproven), found.number) == (True, number), (timeline, position)
            assert (found == history) == (number == 2 and not unproven)


@pytest.mark.slow
def test_a_recovery_to_a_target_before_the_fork_leaves_both_timelines_at_the_target(
    postgres_factory: PostgresFactory,
) -> None:
    """PostgreSQL recovers along the newest timeline by default, and keeps its fork in the history."""
    with throw_away("cdc-recovered-") as directory:
        archive = directory / "log"
        archive.mkdir()
        for folder in (directory, archive):
            folder.chmod(0o777)
        archived = {"restore_command": f"cp '{archive}/%f' '%p'", "recovery_target_action": "promote"}
        server = postgres_factory({"archive_mode": "on", "archive_command": f"cp '%p' '{archive}/%f'"})
        backup = server.standby(directory / "backup")
        backup.stop()
        target, position = (_written(server) for _ in range(2))
        server.stop()
        (server.data / "recovery.signal").touch()
        server.restart(archived)
        soon(lambda: server.query("SELECT pg_is_in_recovery()"), [(False,)])
        assert position < forks(settings_of(server, "postgres"), "2")["1"]
        _written(server)
        server.stop()
        (backup.data / "standby.signal").rename(backup.data / "recovery.signal")
        (backup.data / "postgresql.auto.conf").write_text("")
        backup.restart(archived | {"recovery_target_lsn": str(target)})
        with backup:
            soon(lambda: backup.query("SELECT pg_is_in_recovery()"), [(False,)])
            found = forks(settings_of(backup, "postgres"), "3")
            assert target <= found["1"] == found["2"] < position


def _written(server: PostgresServer) -> Lsn:
    """Write, let the server archive its log, and return the position after the write."""
    server.query("SELECT pg_logical_emit_message(true, 'test', 'message')")
    ((position,),) = server.query("SELECT pg_current_wal_flush_lsn()::text")
    ((name,),) = server.query("SELECT pg_walfile_name(pg_switch_wal())")
    soon(lambda: server.query("SELECT last_archived_wal >= %s FROM pg_stat_archiver", (name,)), [(True,)])
    return Lsn.parse(position)


@pytest.mark.parametrize("name", ["system_identifier", "timeline", "database_oid"])
def test_another_server_is_noticed(begun: tuple[PostgresSource, InitialPoint], name: str) -> None:
    source, initial = begun
    source.check_identity(initial.identity, initial.position)
    with pytest.raises(SourceReplaced, match=name):
        source.check_identity(Facts({**initial.identity.fields(), name: "7"}), initial.position)


def test_a_slot_that_stands_elsewhere_is_noticed(begun: tuple[PostgresSource, InitialPoint]) -> None:
    source, initial = begun
    elsewhere = Lsn(int(Lsn.expect(initial.position)) + 8)
    with pytest.raises(LogGone, match="slot was moved from"):
        source.check_identity(initial.identity, elsewhere)


def test_a_publication_that_was_altered_is_noticed(
    postgres: PostgresServer, begun: tuple[PostgresSource, InitialPoint]
) -> None:
    source, initial = begun
    name = initial.identity.fields()["publication"]
    postgres.query(f"ALTER PUBLICATION {name} SET (publish = 'insert')", database=source.settings.database)
    with pytest.raises(ExactnessError, match="was altered"):
        source.check_identity(initial.identity, initial.position)
    postgres.query(f"DROP PUBLICATION {name}", database=source.settings.database)
    with pytest.raises(ExactnessError, match="altered or dropped"):
        source.check_identity(initial.identity, initial.position)


@pytest.mark.slow
def test_a_log_that_the_server_threw_away_is_noticed_and_before_that_there_is_a_warning(
    postgres_factory: PostgresFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = postgres_factory({"max_slot_wal_keep_size": "32MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    source, initial = begin(server, "postgres")
    caplog.clear()
    source.check_identity(initial.identity, initial.position)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        while "raise max_slot_wal_keep_size" not in caplog.text:
            server.query("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 4000000))")
            source.check_identity(initial.identity, initial.position)
    for _ in range(8):
        server.query("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) FROM generate_series(1, 16)")
        server.query("SELECT pg_switch_wal()")
        server.query("CHECKPOINT")
    with pytest.raises(LogGone, match="server removed log") as gone:
        source.check_identity(initial.identity, initial.position)
    assert "raise max_slot_wal_keep_size" in gone.value.hint
    source.discard(initial.identity)
    assert server.query("SELECT 1 FROM pg_replication_slots") == []


@pytest.mark.slow
def test_a_log_thrown_away_for_an_idle_slot_is_told_from_one_that_was_too_long(
    postgres_factory: PostgresFactory,
) -> None:
    if (newest := max(one.major for one in installations())) < 18:
        pytest.skip("no PostgreSQL here gives idle slots up")
    server = postgres_factory({"idle_replication_slot_timeout": "1s"}, newest)
    source, initial = begin(server, "postgres")

    def status() -> str:
        server.query("CHECKPOINT")
        ((found,),) = server.query("SELECT wal_status FROM pg_replication_slots")
        return str(found)

    soon(status, "lost")
    with pytest.raises(LogGone, match="server removed log") as gone:
        source.check_identity(initial.identity, initial.position)
    assert "raise idle_replication_slot_timeout" in gone.value.hint
