"""Several servers may share an address: every session of a run checks that it reached the right one."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ExactnessError, LogGone, SourceReplaced
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.decode import rows
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import reading_session, session
from airflow_provider_cdc.sources.postgres.server.session_setup import of_run
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy, changed_start_up
from harness.throw_away import throw_away
from tests.servers import throw_away_postgres
from tests.sources.postgres.log.reading import settings as settings_of

RUN_ID = "20260101T000000Z-00000000"
MADE = "SELECT slot_name FROM pg_replication_slots WHERE starts_with(slot_name, 'cdc') AND NOT temporary"
OTHERS = ("standby", "promoted standby", "clone on the same timeline", "unrelated server")


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with throw_away_postgres() as server:
        server.query(
            "CREATE TABLE stock (id int PRIMARY KEY, n int); ALTER TABLE stock REPLICA IDENTITY FULL;"
            "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 500) i"
        )
        yield server


@pytest.fixture(scope="module", params=OTHERS)
def other(primary: PostgresServer, request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str]]:
    """A second server of each kind, and what distinguishes it from the primary."""
    with ExitStack() as stack:
        directory = stack.enter_context(throw_away("cdc-other-"))
        if request.param == "unrelated server":
            server = stack.enter_context(PostgresServer.start(directory))
            server.query("CREATE TABLE stock (id int PRIMARY KEY, n int); ALTER TABLE stock REPLICA IDENTITY FULL")
            yield server, "system_identifier"
            return
        server = stack.enter_context(primary.standby(directory))
        if request.param == "promoted standby":
            server.query("SELECT pg_promote()")
        if request.param == "clone on the same timeline":
            # Like a copy of the files or of a volume that was not configured as a standby.
            server.stop()
            (server.data / "standby.signal").unlink()
            server.restart()
            # It continues by itself, and its log soon reaches as far as the primary's.
            for _ in range(3):
                server.query("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'fill', 'x')")
            assert server.query("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0].startswith("00000001")
        yield (
            server,
            {
                "standby": "reaches a standby",
                "promoted standby": "timeline was 1, here it is 2",
                "clone on the same timeline": "reaches a copy of the server",
            }[request.param],
        )


@contextmanager
def begun(primary: PostgresServer, port: int) -> Iterator[tuple[PostgresSource, InitialPoint]]:
    """A run that began on the primary itself, and its source, which connects to ``port``."""
    direct = PostgresSource(settings_of(primary, "postgres"))
    initial = direct.record_initial(direct.preflight(["public.stock"]), LockPolicy(), RUN_ID)
    behind = PostgresSource(dataclasses.replace(direct.settings, port=port))
    try:
        yield behind.of_run(initial.identity, initial.position), initial
    finally:
        direct.discard(initial.identity)


def read_table(source: PostgresSource, table: Table, consistency: str) -> None:
    with source.shared_reads({consistency}, LockPolicy()) as shared:
        for chunk in source.plan_chunks(table, 100):
            with shared.reader(table, consistency, LockPolicy()) as reader:
                list(reader.read(chunk))
                reader.wait_until_durable()


def read_log(source: PostgresSource, initial: InitialPoint) -> None:
    bound = source.bound_reads()
    for segment in source.segments(Start(initial.position, initial.identity), AT_START, bound.log_end):
        tracked = [TrackedTable(0, initial.tables[0])]
        with source.read_segment(segment, initial.position, tracked) as reader:
            list(reader)


WORK: dict[str, Callable[[PostgresSource, InitialPoint], None]] = {
    "read": lambda source, initial: read_table(source, initial.tables[0], "watermark"),
    "read in a shared view": lambda source, initial: read_table(source, initial.tables[0], "exported"),
    "bound and read the log": read_log,
    "check": lambda source, initial: source.check_tables(initial.tables),
}


@pytest.mark.parametrize("work", WORK)
def test_every_session_that_reaches_another_server_is_refused(
    primary: PostgresServer, other: tuple[PostgresServer, str], work: str
) -> None:
    """One session is sent elsewhere: each of them in turn."""
    server, said = other
    refused: dict[int, str] = {}
    with Proxy(primary.port) as balancer, begun(primary, balancer.port) as (source, initial):
        WORK[work](source, initial)
        sessions = balancer.accepted
        for wrong in range(sessions):
            balancer.misdirect(wrong, server.port)
            try:
                WORK[work](source, initial)
            except ExactnessError as error:
                refused[wrong] = str(error)
    # ADBC opens another session first, to look up the types. It reads no rows in that session.
    looked_up = {3} if work == "bound and read the log" else set()
    assert refused.keys() == set(range(sessions)) - looked_up
    assert [text for text in refused.values() if said not in text] == []


@pytest.mark.parametrize("way", [session, reading_session, lambda where: session(where, replication=True)])
def test_every_kind_of_session_asks_what_server_it_reached(
    primary: PostgresServer, other: tuple[PostgresServer, str], way: Callable[[object], object]
) -> None:
    server, said = other
    with begun(primary, server.port) as (source, _), pytest.raises(ExactnessError, match=said), way(source.settings):  # type: ignore[attr-defined]
        pass


def test_a_position_is_not_fixed_across_two_servers(primary: PostgresServer, other: tuple[PostgresServer, str]) -> None:
    server, _ = other
    direct = PostgresSource(settings_of(primary, "postgres"))
    plans = direct.preflight(["public.stock"])
    with Proxy(primary.port) as balancer:
        behind = PostgresSource(dataclasses.replace(direct.settings, port=balancer.port))
        for wrong in (0, 1):
            balancer.misdirect(wrong, server.port)
            with pytest.raises(CdcError):
                behind.record_initial(plans, LockPolicy(), RUN_ID)
    for each in (primary, server):
        assert each.query(MADE) == []
    direct.release(RUN_ID)


def test_a_clone_that_has_the_slot_is_recognised_by_its_start(primary: PostgresServer, tmp_path: Path) -> None:
    """A copy of all files, slots included: what was read from it does not count with a bound of the primary."""
    with begun(primary, primary.port) as (source, _):
        primary.query("CHECKPOINT")
        primary.stop()
        shutil.copytree(primary.directory, tmp_path / "copy")
        for path in [tmp_path / "copy/data", *(tmp_path / "copy/data").rglob("*")]:
            os.chown(path, primary.data.stat().st_uid, primary.data.stat().st_gid, follow_symlinks=False)
        primary.restart()
        clone = PostgresServer.start(tmp_path / "copy")
        try:
            there = PostgresSource(dataclasses.replace(source.settings, port=clone.port))
            assert there.bound_reads().incarnation != source.bound_reads().incarnation
        finally:
            clone.stop()


def test_a_server_that_lost_the_position_is_refused(primary: PostgresServer) -> None:
    with begun(primary, primary.port) as (source, initial):
        later = of_run(source.settings, PostgresFacts.of(initial.identity), Lsn.parse("FF/0"))
        with pytest.raises(SourceReplaced, match="server's log ends at"), session(later):
            pass
        moved = source.of_run(initial.identity, Lsn.parse("0/1000"))
        with pytest.raises(LogGone, match="slot was moved from"):
            moved.bound_reads()


@pytest.mark.parametrize("encrypted", [False, True], ids=["socket", "adbc"])
def test_a_pooler_that_drops_start_up_options_is_noticed(
    primary: PostgresServer, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "is_plain", lambda connection: not encrypted)

    def drop(parameters: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in parameters.items() if name != "options"}

    with Proxy(primary.port, changed_start_up(drop)) as pooler:
        settings = dataclasses.replace(settings_of(primary, "postgres"), port=pooler.port)
        for way in (session, reading_session):
            with pytest.raises(ConfigurationError, match=r"IntervalStyle is postgres.*\n.*pooler"), way(settings):
                pass


def test_one_dropped_start_up_option_is_noticed(primary: PostgresServer) -> None:
    def drop(parameters: dict[str, str]) -> dict[str, str]:
        return parameters | {"options": parameters["options"].replace("-c row_security=off", "")}

    with Proxy(primary.port, changed_start_up(drop)) as pooler:
        settings = dataclasses.replace(settings_of(primary, "postgres"), port=pooler.port)
        with pytest.raises(ConfigurationError, match="opened with: row_security is on"), session(settings):
            pass
