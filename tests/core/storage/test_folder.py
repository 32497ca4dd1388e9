"""A folder is the same place for every process, and its files are complete or absent."""

from __future__ import annotations

import gzip
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, ManifestError
from tests.core.storage.test_conditional import settings_for


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.mark.parametrize("uri", ["", "lake", "./lake", "nope://x/y", "file://:::", "s3:/lake"])
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used as a folder"):
        Storage(uri)


def test_a_folder_pickles_and_knows_its_parent(storage: Storage) -> None:
    folder = pickle.loads(pickle.dumps(storage.folder("_runs", "r1")))
    folder.write_json("a/b.json", {"x": 1})
    assert storage.read_json("_runs/r1/a/b.json") == {"x": 1}
    assert folder.parent().parent().uri == storage.uri


def test_files_and_folders_are_listed_by_kind_and_in_order(storage: Storage) -> None:
    assert storage.files("a") == storage.folders("a") == []
    for name in ("a/2.json", "a/1.json", "a/b/3.json"):
        storage.write_json(name, {})
    assert storage.files("a") == ["a/1.json", "a/2.json"]
    assert storage.folders("a") == ["a/b"]


def test_a_folder_that_appears_while_it_is_listed_is_no_error(storage: Storage) -> None:
    """pyarrow.fs raised FileNotFoundError: there was no folder to list, and then there was one."""
    path, done = Path(storage.path("later")), threading.Event()

    def make_and_remove() -> None:
        while not done.is_set():
            path.mkdir()
            path.rmdir()

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make_and_remove)
        try:
            for _ in range(10_000):
                assert storage.folders("later") == []
        finally:
            done.set()
        making.result()


def test_a_write_that_fails_leaves_the_old_file(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_json("a.json", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        storage.write_json("a.json", "new")
    assert storage.read_json("a.json") == "old"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'"\xff"',
        b'"half a character, escaped: \\ud800"',
        b'"half a character: \xed\xa0\x80"',
        b'{"rows": NaN}',
        b'{"rows": -Infinity}',
        b'{"rows": ' + b"9" * 5000 + b"}",
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=range(8),
)
def test_a_file_that_is_no_json_is_named(storage: Storage, content: bytes) -> None:
    Path(storage.path("a.json")).write_bytes(content)
    with pytest.raises(ManifestError, match=r"a\.json: not JSON"):
        storage.read_json("a.json")


def test_escapes_and_a_byte_order_mark_are_json(storage: Storage) -> None:
    Path(storage.path("a.json")).write_bytes(b'\xef\xbb\xbf"\\u00fc\\ud83d\\ude00\\u0001"')
    assert storage.read_json("a.json") == "ü😀\x01"


def test_deleting_what_is_not_there_is_fine(storage: Storage) -> None:
    storage.delete_file("a")
    storage.delete_folder("b")


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written to"):
        Storage((tmp_path / "file" / "below").as_uri()).check_writable()
    storage = Storage(tmp_path.as_uri())
    storage.check_writable()
    assert storage.files() == ["file"]


@pytest.mark.slow
def test_an_object_has_the_bytes_that_were_written_whatever_its_name(s3: str, tmp_path: Path) -> None:
    folder, data = Storage(f"s3://lake/{tmp_path.name}", settings_for(s3)), gzip.compress(b"abc")
    folder.write_bytes("packages.tar.gz", data)
    assert folder.size("packages.tar.gz") == len(data)
    assert folder.filesystem.open_input_file(folder.path("packages.tar.gz")).read() == data
