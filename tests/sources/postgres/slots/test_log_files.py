"""Log files that disappeared although the server did not remove them: pg_resetwal, a restored disk, `rm`."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.steps import past
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.log.reading import FULL, LogReading
from tests.sources.postgres.standing import Kept


@pytest.fixture
def server(postgres_factory: PostgresFactory) -> PostgresServer:
    found = postgres_factory()
    found.query(f"CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock {FULL}")
    return found


def lose_log(server: PostgresServer) -> None:
    """Remove what slots need of the log, but for what the server itself is at."""
    ((name,),) = server.query("SELECT pg_walfile_name(min(restart_lsn)) FROM pg_replication_slots")
    server.query("SELECT pg_switch_wal()")
    server.query("INSERT INTO stock VALUES (1, 1)")
    server.query("CHECKPOINT")
    (server.data / "pg_wal" / name).unlink()
    states = server.query("SELECT DISTINCT wal_status FROM pg_replication_slots")
    assert states == [("reserved",)], "the server knows it: the test provokes nothing"


def test_a_standing_slot_whose_log_is_gone_is_made_anew(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(server, "postgres")
    kept.keep("stock")
    before = kept.record.beginning
    kept.keep("stock")
    assert kept.record.beginning == before
    lose_log(server)
    with session(kept.source.settings) as connection, caplog.at_level(logging.WARNING):
        assert past.find_past(kept.source.settings, connection, kept.options) is None
    assert "THE PAST IS LOST" in caplog.text
    kept.keep("stock")
    assert kept.record.beginning != before
    with session(kept.source.settings) as connection:
        assert past.find_past(kept.source.settings, connection, kept.options) is not None
    assert kept.ask("SELECT count(*) FROM pg_replication_slots") == 1
    kept.forget()


def test_a_run_whose_log_is_gone_says_so(server: PostgresServer) -> None:
    reading = LogReading(server, "postgres", "stock")
    reading.execute("INSERT INTO stock VALUES (2, 2)")
    lose_log(server)
    with pytest.raises(LogGone, match="58P01"):
        reading.read()
    reading.close()
