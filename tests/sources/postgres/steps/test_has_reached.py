"""A standby has reached what it has replayed, whatever the primary reports and whatever its own clock shows."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.postgres.steps.check_identity import has_reached
from tests.conftest import PostgresFactory
from tests.sources.postgres.log.reading import settings as settings_of


@pytest.mark.slow
def test_a_standby_has_reached_what_it_has_replayed(postgres_factory: PostgresFactory, tmp_path: Path) -> None:
    primary = postgres_factory()
    here = settings_of(primary, "postgres")
    with primary.standby(tmp_path) as standby:
        there = settings_of(standby, "postgres")
        standby.query("SELECT pg_wal_replay_pause()")
        while standby.query("SELECT pg_get_wal_replay_pause_state()") != [("paused",)]:
            time.sleep(0.05)
        moment = datetime.now(UTC)
        time.sleep(0.01)
        primary.query("CREATE TABLE t (id int PRIMARY KEY)")
        position = Lsn.parse(str(primary.query("SELECT pg_current_wal_flush_lsn()")[0][0]))
        for point in (position, moment):
            assert has_reached(here, point).reached
            lagging = has_reached(there, point)
            assert not lagging.reached
            assert lagging.lacks
        standby.query("SELECT pg_wal_replay_resume()")
        for point in (position, moment):
            deadline = time.monotonic() + 60
            while not has_reached(there, point).reached:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert standby.query("SELECT count(*) FROM t") == [(0,)]
