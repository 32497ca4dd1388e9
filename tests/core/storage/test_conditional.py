"""Writes under a condition, on a store whose answers are lost, late or refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from airflow_provider_cdc.core.storage import conditional, durable
from airflow_provider_cdc.core.storage import conditional as obstore_objects
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings
from airflow_provider_cdc.errors import ManifestError, StorageUnavailable
from harness.http_faults import HANGS, LATE, LOST, REFUSED, Faults, http_faults
from harness.s3_server import ADMIN, READER
from tests.core.storage.increments import incremented


def settings_for(endpoint: str, credentials: tuple[str, str] = ADMIN) -> StorageSettings:
    return StorageSettings(
        "s3",
        {"access_key": credentials[0], "secret_key": credentials[1], "endpoint": endpoint, "region": "us-east-1"},
    )


@pytest.fixture
def faults(s3: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Faults]:
    monkeypatch.setattr(conditional, "_PAUSE_SECONDS", 0.02)
    if HANGS in request.node.name:
        monkeypatch.setitem(obstore_objects._CLIENT, "timeout", timedelta(seconds=5))
    with http_faults(s3) as proxy:
        yield proxy


@pytest.fixture
def folder(faults: Faults, tmp_path: Path) -> Storage:
    folder = Storage(f"s3://lake/{tmp_path.name}%20odd%20~%C3%BC", settings_for(faults.endpoint))
    assert folder.has_conditional_writes
    assert folder.files() == [], "the probe is gone"
    faults.clear()
    return folder


def put(faults: Faults, fault: str, times: int = 1) -> None:
    """Inject a fault into the next writes."""

    def of(request: Any) -> str:
        hit = request.method == "PUT" and sum(one.method == "PUT" for one in faults.injected) < times
        return fault if hit else ""

    faults.fault = of


@pytest.mark.slow
@pytest.mark.parametrize("fault", [REFUSED, LOST, LATE, HANGS])
def test_a_write_whose_answer_is_lost_is_one_write(folder: Storage, faults: Faults, fault: str) -> None:
    put(faults, fault)
    assert folder.create_json("run/manifest ü.json", {"run": "one"})
    assert faults.injected
    faults.clear()
    assert not folder.create_json("run/manifest ü.json", {"run": "two"})
    present = folder.read_versioned("run/manifest ü.json")
    assert present is not None
    assert present[0] == folder.read_json("run/manifest ü.json") == {"run": "one"}
    put(faults, fault)
    assert folder.replace_json("run/manifest ü.json", {"run": "three"}, present[1])
    faults.clear()
    assert not folder.replace_json("run/manifest ü.json", {"run": "four"}, present[1])
    assert folder.read_json("run/manifest ü.json") == {"run": "three"}


def test_another_writer_in_between_is_seen_although_the_own_answer_is_lost(folder: Storage, faults: Faults) -> None:
    """The own request gets lost before the store sees it, and another writer is faster than the second one."""
    other = Storage(folder.uri, folder._open().settings)

    def interfere(request: Any) -> str:
        if request.method != "PUT":
            return ""
        faults.fault = lambda request: ""
        assert threading.current_thread() is not threading.main_thread()
        with faults_unlocked(faults):
            assert other.create_json("x.json", {"run": "other"})
        return REFUSED

    faults.fault = interfere
    assert not folder.create_json("x.json", {"run": "own"})
    assert folder.read_json("x.json") == {"run": "other"}


class faults_unlocked:  # noqa: N801
    def __init__(self, faults: Faults) -> None:
        self._lock = faults.lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(self, *arguments: object) -> None:
        self._lock.acquire()


def test_a_store_that_stays_away_is_an_error_that_a_retry_may_fix(folder: Storage, faults: Faults) -> None:
    faults.fault = lambda request: REFUSED
    with pytest.raises(StorageUnavailable, match="503"):
        folder.create_json("x.json", {})
    assert ADMIN[1] not in str(faults.requests)
    faults.clear()
    assert folder.create_json("x.json", {})


def test_each_increment_of_many_writers_counts(folder: Storage) -> None:
    assert incremented(folder) == 20


@pytest.mark.slow
def test_a_store_that_ignores_conditions_is_found_out(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "_known", {})
    monkeypatch.setattr(durable, "SETTLE_SECONDS", 0.1)
    put = obstore.put

    def careless(store: Any, key: str, data: bytes, mode: Any) -> Any:
        return put(store, key, data)

    monkeypatch.setattr("airflow_provider_cdc.core.storage.conditional.obstore.put", careless)
    assert not folder.has_conditional_writes
    assert folder.create_json("x.json", {"run": "one"})
    assert not folder.create_json("x.json", {"run": "two"})
    assert folder.read_json("x.json") == {"run": "one"}


def test_credentials_that_may_only_read_elect_and_are_told(s3: str, tmp_path: Path) -> None:
    folder = Storage(f"s3://lake/{tmp_path.name}", settings_for(s3, READER))
    assert not folder.has_conditional_writes


@pytest.mark.slow
def test_a_writer_that_elects_meanwhile_does_not_win_too(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try without conditional writes has looked for the record, and writes its own at the end of its election."""
    elected = b'{"run": "elected"}'
    durable.write(folder.filesystem, f"{folder.path('x.json')}.{'0' * 32}.candidate", elected)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        durable.write(folder.filesystem, folder.path("x.json"), elected)

    monkeypatch.setattr(durable, "time", SimpleNamespace(sleep=sleep))
    assert not folder.create_json("x.json", {"run": "own"})
    assert waits == [durable.SETTLE_SECONDS]
    assert folder.read_json("x.json") == {"run": "elected"}


@pytest.mark.parametrize("replacements", [1, 3])
def test_a_record_that_is_replaced_while_it_is_read_is_read_again(
    s3: str, faults: Faults, folder: Storage, replacements: int
) -> None:
    direct = Storage(folder.uri, settings_for(s3))
    direct.write_json("head.json", {"run": 0})
    left = [*range(1, replacements + 1)]

    def replace(request: Any) -> str:
        # The reader has asked for the size, and now asks for so many bytes.
        if request.method == "GET" and left:
            direct.write_json("head.json", {"run": 10 ** left.pop(0)})
        return ""

    faults.fault = replace
    assert folder.read_json("head.json") == {"run": 10**replacements}
    assert left == []
    direct.write_text("head.json", '{"run": ')
    with pytest.raises(ManifestError, match="not JSON"):
        folder.read_json("head.json")
