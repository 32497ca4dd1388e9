"""The machine loses power right after a publication: what was not synced to the disk is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sinks.iceberg.runs import rows_at
from tests.sinks.test_contract import TABLES, Lake


@pytest.mark.slow
def test_a_publication_survives_a_crash_of_the_machine(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[Path, int] = {}
    fsync = os.fsync

    def observe(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[path] = path.stat().st_size
        if path.is_dir():
            names.update(path.iterdir())

    names: set[Path] = set()
    monkeypatch.setattr(os, "fsync", observe)
    first, second = lake.stage(3), lake.stage(5)
    lake.sink.publish(first)
    lake.sink.publish(second)
    monkeypatch.undo()
    inodes = {path.stat().st_ino for path, size in synced.items() if path.is_file() and path.stat().st_size == size}
    for path in [path for path in Path(lake.storage.path()).rglob("*") if path.is_file()]:
        # SQLite syncs its file itself.
        if path.name == "_catalog.db":
            continue
        if path not in names:
            path.unlink()
        elif path.stat().st_ino not in inodes:
            path.write_bytes(b"")
    assert lake.seen() == [[5, 5, 5]] * 2
    assert [[row["id"] for row in rows_at(lake, first.run_id, table)] for table in TABLES] == [[3, 3, 3]] * 2
    lake.sink.publish(lake.stage(7, before=second))
    assert lake.seen() == [[5, 5, 7, 7, 7]] * 2
