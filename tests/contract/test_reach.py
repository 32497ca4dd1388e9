"""How far a server has come: reported no earlier than it is true, and always in the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source
from harness.server_process import free_port
from tests.contract.databases import Database

NOW = {"mysql": "SELECT UNIX_TIMESTAMP(SYSDATE(6))", "postgres": "SELECT extract(epoch FROM clock_timestamp())"}
NEVER: dict[str, AsOf] = {
    "mysql": GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3"),
    "postgres": Lsn.parse("FFFFFF/0"),
}


def telling(db: Database) -> Source:
    return open_source(db.settings)


def clock(db: Database) -> datetime:
    return datetime.fromtimestamp(float(db.query(NOW[db.kind])[0][0]), UTC)


def test_a_position_of_the_server_is_reached_and_another_one_is_not(db: Database) -> None:
    _, here = open_source(db.settings).here()
    position = here
    db.create("t", "id INT PRIMARY KEY")
    assert telling(db).has_reached(position).reached
    never = telling(db).has_reached(NEVER[db.kind])
    assert not never.reached
    assert "it lacks 3 transactions" in never.lacks if db.kind == "mysql" else "of log ahead" in never.lacks


def test_a_time_is_reached_once_nothing_that_is_committed_later_belongs_to_it(db: Database) -> None:
    db.create("t", "id INT PRIMARY KEY")
    source = telling(db)
    # On a busy machine the question may take longer than until then.
    for seconds in (1, 3, 10, 30):
        later = clock(db) + timedelta(seconds=seconds)
        seen = source.has_reached(later)
        if clock(db) < later:
            break
    assert not seen.reached
    assert "clock" in seen.lacks
    while clock(db) <= later:
        time.sleep(0.1)
    # Nobody has to write anything for this.
    assert source.has_reached(later).reached


def test_a_time_before_all_that_the_log_holds_is_reached(db: Database) -> None:
    db.create("t", "id INT PRIMARY KEY")
    assert telling(db).has_reached(datetime(2000, 1, 1, tzinfo=UTC)).reached


def test_a_position_of_another_kind_of_database_is_refused(db: Database) -> None:
    for kind, position in NEVER.items():
        if kind != db.kind:
            with pytest.raises(ConfigurationError, match=r"LSN|GTID set"):
                telling(db).has_reached(position)


def test_a_server_that_does_not_answer_is_no_answer(db: Database) -> None:
    fields = {**vars(db.settings), "port": free_port()}
    with pytest.raises(SourceUnavailable):
        open_source(ConnectionSettings(**fields)).has_reached(NEVER[db.kind])
