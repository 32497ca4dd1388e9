"""Of several writers of one name, exactly one creates the file, and everything that it depends on is durable."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from airflow_provider_cdc.core.storage import durable
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import StorageUnavailable
from tests.small_disk import small_disk

WRITERS = 8


@pytest.fixture(params=["local disk", "disk without links", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[fs.FileSystem, str]:
    """A file system and a folder in it."""
    monkeypatch.setattr(durable, "SETTLE_SECONDS", 1.0)
    if request.param == "object store":
        # Anything that is not a local disk is taken for one.
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "lake"
    if request.param == "disk without links":

        def refuse(*arguments: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    return fs.LocalFileSystem(), str(tmp_path / "lake")


def read(filesystem: fs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


@pytest.mark.slow
def test_one_of_many_writers_makes_the_file(place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    for number in range(3):
        path = f"{folder}/{number}/record.json"
        together = threading.Barrier(WRITERS)

        def create(writer: int, path: str = path, together: threading.Barrier = together) -> bool:
            together.wait()
            return durable.create(filesystem, path, f"writer {writer}".encode() * 1000)

        with ThreadPoolExecutor(WRITERS) as writers:
            made = list(writers.map(create, range(WRITERS)))
        assert made.count(True) == 1
        assert read(filesystem, path) == f"writer {made.index(True)}".encode() * 1000


def test_what_is_there_stays(place: tuple[fs.FileSystem, str]) -> None:
    filesystem, folder = place
    assert durable.create(filesystem, f"{folder}/record.json", b"first")
    assert not durable.create(filesystem, f"{folder}/record.json", b"second")
    assert read(filesystem, f"{folder}/record.json") == b"first"


def test_who_finds_a_candidate_completes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may be dead, or asleep between its choice and the file."""
    monkeypatch.setattr(durable, "SETTLE_SECONDS", 0.0)
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    path = "lake/record.json"
    asleep = threading.Event()
    others_done = threading.Event()
    original = durable.write

    def slow(filesystem: fs.FileSystem, written: str, data: bytes) -> None:
        if written == path and threading.current_thread().name == "sleeper":
            asleep.set()
            assert others_done.wait(60)
        original(filesystem, written, data)

    monkeypatch.setattr(durable, "write", slow)
    made: list[bool] = []
    sleeper = threading.Thread(target=lambda: made.append(durable.create(filesystem, path, b"sleeper")), name="sleeper")
    sleeper.start()
    assert asleep.wait(60)
    assert not durable.create(filesystem, path, b"other")
    assert read(filesystem, path) == b"sleeper"
    others_done.set()
    sleeper.join()
    assert made == [True]
    assert read(filesystem, path) == b"sleeper"


def test_a_list_that_lags_behind_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(durable, "_candidates", lambda *arguments: [])
    assert durable.create(filesystem, "lake/record.json", b"first", settle=0)
    assert read(filesystem, "lake/record.json") == b"first"


def test_a_call_that_was_carried_out_twice_is_no_defeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a call whose answer was lost, and then reports that the name exists."""
    original = os.link

    def answer_lost(source: str, target: str) -> None:
        original(source, target)
        original(source, target)

    monkeypatch.setattr(os, "link", answer_lost)
    assert durable.create(fs.LocalFileSystem(), str(tmp_path / "record.json"), b"first")
    assert not durable.create(fs.LocalFileSystem(), str(tmp_path / "record.json"), b"second")


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(OSError, match="No space"):
            durable.create(fs.LocalFileSystem(), str(tmp_path / "record.json"), b"first")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [durable.write, durable.create])
def test_a_full_disk_keeps_what_was_there_and_gets_nothing_else(make: Callable[..., object], tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        if disk is None:
            pytest.skip("only root may mount anything on this machine")
        local, folder = fs.LocalFileSystem(), disk.folder
        durable.write(local, str(folder / "head.json"), b"first")
        disk.fill()
        for size in (1, 100_000):
            with pytest.raises(OSError, match="No space left"):
                make(local, str(folder / "record.json"), b"x" * size)
        with pytest.raises(OSError, match="No space left"):
            durable.write(local, str(folder / "head.json"), b"second")
        assert [path.name for path in folder.iterdir()] == ["head.json"]
        assert (folder / "head.json").read_bytes() == b"first"
        disk.make_room()
        make(local, str(folder / "record.json"), b"second")
        assert (folder / "record.json").read_bytes() == b"second"


def test_folders_and_names_are_synced_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    original = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    durable.create(fs.LocalFileSystem(), str(tmp_path / "a/b/record.json"), b"first")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")} <= synced


def test_what_is_written_together_appears_once_all_of_it_survives_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Storage(tmp_path.as_uri())
    synced: set[str] = set()
    original = durable._sync

    def sync(path: str) -> None:
        record = tmp_path / "done" / "1.json"
        assert not record.exists() or path == str(record.parent), "a record was there before what it rests on"
        original(path)
        synced.add(Path(path).name)

    monkeypatch.setattr(durable, "_sync", sync)
    with folder.together() as together:
        together.make_folder("chunks/t")
        (tmp_path / "chunks" / "t" / "file").write_bytes(b"rows")
        together.sync("chunks/t/file")
        together.sync("chunks/t")
        for number in range(3):
            together.folder("done").write_json(f"{number}.json", {})
        assert not synced
        assert folder.files("done") != ["done/0.json", "done/1.json", "done/2.json"]
    assert folder.files("done") == ["done/0.json", "done/1.json", "done/2.json"]
    assert {"file", "t", "chunks", "done", tmp_path.name} <= synced


@pytest.mark.parametrize("when", ["work", "sync"])
def test_of_what_is_written_together_nothing_counts_after_an_error(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Storage(tmp_path.as_uri())

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def work() -> None:
        with folder.together() as together:
            together.write_json("done/1.json", {})
            if when == "work":
                raise ZeroDivisionError
            monkeypatch.setattr(durable, "_sync", fail)

    with pytest.raises((StorageUnavailable, ZeroDivisionError)):
        work()
    assert list((tmp_path / "done").iterdir()) == []


def test_what_is_written_together_costs_a_disk_two_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Storage(tmp_path.as_uri())
    waiting = 0
    gate = threading.Condition()

    def sync(path: str) -> None:
        nonlocal waiting
        with gate:
            waiting += 1
            gate.notify_all()
            assert gate.wait_for(lambda: waiting >= 8, 60), "they wait one after the other"

    monkeypatch.setattr(durable, "_sync", sync)
    with folder.together() as together:
        for number in range(30):
            together.write_json(f"done/{number}.json", {})
    assert waiting > 30
