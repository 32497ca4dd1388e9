"""Errors are recognised by SQLSTATE, whatever the server's language."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LogGone,
    LoginRefused,
    SchemaChanged,
    SourceUnavailable,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.decode import rows
from airflow_provider_cdc.sources.postgres.log.segments import messages
from airflow_provider_cdc.sources.postgres.server.session import query, reading_session, session, slot_errors
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy, changed_start_up
from tests.soon import soon
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.reading import settings as settings_of

Way = Callable[[ConnectionSettings], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def german() -> Iterator[PostgresServer]:
    """A server with German messages, if this machine has them."""
    with tempfile.TemporaryDirectory(prefix="cdc-german-") as folder:
        locales = Path(folder) / "locales"
        locales.mkdir()
        Path(folder).chmod(0o755)
        made = subprocess.run(
            ["localedef", "-i", "de_DE", "-f", "UTF-8", str(locales / "de_DE.UTF-8")], capture_output=True, check=False
        )
        if made.returncode != 0:
            pytest.skip("this machine cannot make a German locale")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCPATH", str(locales))
            with PostgresServer.start(
                Path(folder) / "server", options={"lc_messages": "de_DE.UTF-8", "max_connections": "25"}
            ) as server:
                server.query("CREATE TABLE stock (id int PRIMARY KEY)")
                server.query("CREATE ROLE clerk LOGIN PASSWORD 'p'; CREATE ROLE nobody NOLOGIN PASSWORD 'p'")
                server.query("CREATE DATABASE closed")
                server.query("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
                with pytest.raises(psycopg.Error) as told:
                    server.query("SELECT * FROM nothing")
                if "existiert nicht" not in str(told.value):
                    pytest.skip("this server was built without German")
                yield server


@pytest.mark.parametrize("way", [session, reading_session, lambda settings: session(settings, replication=True)])
def test_a_connection_that_cannot_work_says_what_to_fix(way: Way, german: PostgresServer) -> None:
    clerk = dataclasses.replace(settings_of(german, "postgres"), user="clerk", password="p")
    superuser = settings_of(german, "postgres")
    cases: list[tuple[ConnectionSettings, type[CdcError], str]] = [
        (dataclasses.replace(clerk, password="wrong"), LoginRefused, "refuses this user or password"),
        (dataclasses.replace(clerk, user="nobody"), LoginRefused, "refuses this user or password"),
        (dataclasses.replace(superuser, database="nowhere"), ConfigurationError, "no database 'nowhere'"),
        (dataclasses.replace(clerk, database="closed"), ConfigurationError, "GRANT CONNECT|REPLICATION"),
    ]
    for wrong, error, said in cases:
        with pytest.raises(error, match=said), way(wrong):
            pass


def test_a_user_that_may_not_replicate_is_refused(german: PostgresServer) -> None:
    clerk = dataclasses.replace(settings_of(german, "postgres"), user="clerk", password="p")
    with pytest.raises(ConfigurationError, match='ALTER ROLE "clerk" REPLICATION'), session(clerk, replication=True):
        pass


def test_a_server_that_is_full_can_be_retried(german: PostgresServer) -> None:
    held = [german.connect()]

    def are_gone() -> None:
        """The processes of sessions that ended before may be there for a moment yet."""
        there = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        soon(lambda: held[0].execute(there).fetchall(), [(1,)])

    are_gone()
    with suppress(psycopg.OperationalError):
        while True:
            held.append(german.connect())
    for way in (session, reading_session):
        with pytest.raises(SourceUnavailable, match="fewer Spark tasks"), way(settings_of(german, "postgres")):
            pass
    for connection in held[1:]:
        connection.close()
    are_gone()
    held[0].close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["socket", "adbc"])
def test_a_shared_view_that_is_gone_can_be_retried(
    german: PostgresServer, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "is_plain", lambda connection: not encrypted)
    source = PostgresSource(settings_of(german, "postgres"))
    with session(source.settings) as connection:
        (table,) = read_tables(connection, [TableName("public", "stock")])
    with source.shared_reads({"exported"}, LockPolicy()) as shared:
        pass
    soon(lambda: german.query("SELECT 1 FROM pg_replication_slots"), [])
    with (
        pytest.raises(SourceUnavailable, match="exported the snapshot"),
        shared.reader(table, "exported", LockPolicy()),
    ):
        pass


def test_a_slot_that_is_gone_is_reported_as_such(german: PostgresServer) -> None:
    with (
        pytest.raises(LogGone, match="existiert nicht"),
        reading_session(settings_of(german, "postgres")) as reading,
        slot_errors("gone"),
    ):
        list(messages(reading, "gone", "p", Lsn(1), Lsn(2)))


def test_a_table_that_is_gone_is_reported_as_such(german: PostgresServer) -> None:
    with pytest.raises(SchemaChanged, match="existiert nicht"), session(settings_of(german, "postgres")) as connection:
        query(connection, "SELECT * FROM public.nothing")


def test_a_pooler_that_refuses_start_up_options_is_reported(postgres: PostgresServer) -> None:
    """A server refuses what it does not know in the same way."""

    def spoil(parameters: dict[str, str]) -> dict[str, str]:
        return parameters | {"options": "-c no_such_setting=1"}

    with Proxy(postgres.port, changed_start_up(spoil)) as pooler:
        settings = dataclasses.replace(settings_of(postgres, "postgres"), port=pooler.port)
        for way in (session, reading_session):
            with pytest.raises(ConfigurationError, match=r"start-up options(?s:.*)pooler"), way(settings):
                pass


@pytest.mark.parametrize("way", [session, reading_session, lambda settings: session(settings, replication=True)])
def test_the_environment_of_other_programs_changes_no_session(
    way: Way, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(postgres, "postgres")
    for name, value in {
        "PGREQUIREAUTH": "gss",
        "PGCHANNELBINDING": "require",
        "PGGSSENCMODE": "require",
        "PGSSLMINPROTOCOLVERSION": "TLSv1.3",
        "PGSSLMAXPROTOCOLVERSION": "TLSv1",
        "PGSSLNEGOTIATION": "direct",
        "PGSSLCERTMODE": "require",
        "PGREQUIREPEER": "nobody",
        "PGMINPROTOCOLVERSION": "3.2",
        "PGMAXPROTOCOLVERSION": "latest",
        "PGTARGETSESSIONATTRS": "standby",
        "PGLOADBALANCEHOSTS": "random",
        "PGHOSTADDR": "192.0.2.1",
        "PGOPTIONS": "-c search_path=nowhere",
        "PGSSLROOTCERT": "/nowhere",
    }.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with way(settings):
                pass
    monkeypatch.setenv("PGSERVICE", "of_another_program")
    with pytest.raises(ConfigurationError, match=r"PGSERVICE.*\n.*unset PGSERVICE"), way(settings):
        pass


def test_the_machine_of_a_session_that_vanishes_is_noticed_within_minutes(postgres: PostgresServer) -> None:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    with session(settings_of(postgres, "postgres")) as connection:
        shown = [query(connection, f"SHOW {name}")[0][0] for name in names]
    assert shown == ["60", "15", "4", "600000"]


def test_a_currency_is_the_database_s_own_and_stays_the_same_during_a_run(german: PostgresServer) -> None:
    """With another lc_monetary, an amount in euros would be printed as one in dollars."""
    german.query("ALTER DATABASE postgres SET lc_monetary = 'de_DE.UTF-8'")
    german.query("CREATE TABLE prices (id int PRIMARY KEY, price money); ALTER TABLE prices REPLICA IDENTITY FULL")
    german.query("INSERT INTO prices VALUES (1, 12345.67)")
    ((shown,),) = german.query("SELECT price::text FROM prices")
    assert "€" in shown
    source = PostgresSource(settings_of(german, "postgres"))
    initial = source.record_initial(source.preflight(["public.prices"]), LockPolicy(), "money")
    run = source.of_run(initial.identity, initial.position)
    with run.reader(initial.tables[0], "watermark", LockPolicy()) as reader:
        (chunk,) = run.plan_chunks(initial.tables[0], 100)
        assert [row["price"] for batch in reader.read(chunk) for row in batch.to_pylist()] == [shown]
    german.query("ALTER DATABASE postgres SET lc_monetary = 'C'")
    with pytest.raises(CdcError, match="another currency"):
        run.bound_reads()
    german.query("ALTER DATABASE postgres RESET lc_monetary")
    source.discard(initial.identity)
