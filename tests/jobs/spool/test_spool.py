"""The log of a run is spooled while the tables are read: the copy is exact although the source removes this log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.spool.spooled_run import Server, SpooledRun, purge, rotate


@pytest.mark.slow
def test_the_source_removes_the_log_behind_the_spool_and_the_copy_is_exact(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last parts are read after the last piece."""
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    gone: list[bool] = []

    def between() -> None:
        run.change(5)
        last = len(gone) >= len(run.read_parts) - 2
        if last:
            run.server.query("UPDATE shop.orders SET note = 'late'")
        for _ in range(0 if last else 2):
            rotate(server)
            run.change(5)
            assert spooler.take()
            run.change(5)
            purge(server)
        gone.append(run.log_of_position_is_gone())

    run.change()
    run.between = between
    run.finish()
    assert gone[-1]
