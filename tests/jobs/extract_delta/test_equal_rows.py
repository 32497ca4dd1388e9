"""Rows of a table without a key that are stored in several ways, and that are one row in the copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MysqlFactory
from tests.jobs.spool.spooled_run import SpooledRun

VALUES = {
    "number": ("JSON", "JSON_ARRAY(5, 1.5)", "JSON_ARRAY(CAST(5 AS UNSIGNED), 1.5e0)"),
    "member": ("ENUM('','x')", "1", "0"),
    "letter": ("VARCHAR(9) CHARACTER SET cp932", "x'81ca'", "x'eef9'"),
}
"""For each column, its type and two values that are stored in other ways, and have one text."""


@pytest.mark.slow
def test_equal_rows_that_are_stored_in_several_ways_are_counted_together(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each of them would be searched in the copy for itself, and be found only once."""
    server = mysql_factory({"sql_mode": ""})
    server.query("CREATE SCHEMA shop")
    server.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY)")
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in VALUES.items())
    server.query(f"CREATE TABLE shop.events (a INT, {columns})")
    one, other = (", ".join(values[number] for values in VALUES.values()) for number in (1, 2))

    def insert(number: int) -> None:
        server.query(f"INSERT INTO shop.events VALUES ({number}, {one}), ({number}, {other}), ({number}, {other})")

    for number in (1, 2):
        insert(number)
    for night in (1, 2):
        refresh = "full" if night == 1 else "changes"
        run = SpooledRun(
            server, tmp_path, monkeypatch, run_id=f"2026010{night}T000000Z-00000000", refresh=refresh, chunk_rows=1000
        )
        # Rows come and go between the position and the read.
        insert(3)
        server.query("DELETE FROM shop.events WHERE a = 1 LIMIT 1")
        run.finish()
        server.query("DELETE FROM shop.events WHERE a = 3")
