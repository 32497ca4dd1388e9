"""The server's disk is put back to an earlier state, and the server then writes more log than it had written before.

To its clients it is the same server, with the slots that it had in the earlier state.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import LogGone
from harness.pipeline import Pipeline
from harness.postgres_server import PostgresServer
from tests.consistency.postgres.nights import FULL, Nights


class Disk:
    """What a server had on disk when this was made. The server was stopped for that, and runs again."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server, self._kept = server, folder / "kept"
        server.stop()
        shutil.copytree(server.data, self._kept)
        server.restart()

    def put_back(self) -> None:
        server = self._server
        server.stop()
        owner = server.data.stat()
        shutil.rmtree(server.data)
        shutil.copytree(self._kept, server.data)
        for path in [server.data, *server.data.rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid)
        server.restart()


# Beyond every position that the server had reached before.
BEYOND = "SELECT pg_switch_wal()"


def rows(found: dict[str, Any]) -> list[tuple[int, int]]:
    ((_, uri),) = found["published"].items()
    return sorted((row["id"], row["v"]) for row in pq.read_table(Storage(uri).path()).to_pylist())


@pytest.fixture
def stock(nights: Nights) -> Nights:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"))
    nights.do("INSERT INTO stock VALUES (1, 0), (2, 0), (3, 0)")
    return nights


def read(nights: Nights, folder: Path, **more: Any) -> tuple[Pipeline, Disk]:
    """A run that has read a row which a later change is not to lead back from, and the disk before that."""
    run = nights.night(**{"refresh": "full", "standing_slot": "", **more})
    run.record()
    disk = Disk(nights.server, folder)
    nights.do("UPDATE stock SET v = 100 WHERE id = 1")
    run.snapshot()
    return run, disk


@pytest.mark.slow
def test_between_the_reads_and_their_log_it_stops_the_run(stock: Nights, tmp_path: Path) -> None:
    run, disk = read(stock, tmp_path)
    disk.put_back()
    stock.do(BEYOND, "UPDATE stock SET v = 7 WHERE id = 2")
    with pytest.raises(LogGone, match="no longer contains the mark"):
        run.extract_delta()
    run.release()
    again = stock.night("full", standing_slot="")
    again.record()
    assert rows(again.finish()) == [(1, 0), (2, 7), (3, 0)]


@pytest.mark.slow
def test_a_restart_between_the_reads_and_their_log_stops_nothing(stock: Nights, tmp_path: Path) -> None:
    run, _ = read(stock, tmp_path)
    stock.server.restart()
    stock.do(BEYOND, "UPDATE stock SET v = 7 WHERE id = 2", "SELECT pg_logical_emit_message(false, 'other', 'text')")
    run.extract_delta()
    assert rows(run.consolidate()) == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.slow
def test_after_a_copy_at_the_end_of_its_reads_the_copy_is_not_rolled_forward(stock: Nights, tmp_path: Path) -> None:
    stock.do("ALTER TABLE stock REPLICA IDENTITY DEFAULT")
    run, disk = read(stock, tmp_path, standing_slot="night")
    run.extract_delta()
    disk.put_back()
    # The copy has the lost state, at the position that its record names.
    assert rows(run.consolidate()) == [(1, 100), (2, 0), (3, 0)]
    stock.do(BEYOND, "UPDATE stock SET v = 7 WHERE id = 2")
    following = stock.night("auto")
    following.record()
    assert "has no record of the copy" in following.plans[0].reason
    stock.check(following.finish()["published"])


@pytest.mark.long
def test_a_run_is_cleared_on_a_server_whose_disk_was_put_back_to_before_it(stock: Nights, tmp_path: Path) -> None:
    """The copy is not of this history, whatever the run records about it on the server now."""
    stock.first()
    disk = Disk(stock.server, tmp_path)
    stock.do("UPDATE stock SET v = 11 WHERE id = 1")
    lost = stock.night()
    lost.record()
    lost.finish()
    disk.put_back()
    lost.consolidate()
    stock.do(BEYOND, "UPDATE stock SET v = 22 WHERE id = 2")
    run = stock.night("auto")
    run.record()
    assert "has no record of the copy" in run.plans[0].reason
    stock.check(run.finish()["published"])
