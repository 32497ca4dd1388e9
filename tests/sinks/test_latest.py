"""A table's head only moves forward and keeps its source, even if other runs publish at the same moment."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.head import decode_copy
from airflow_provider_cdc.core.positions.facts import Facts, source_of
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, PublishIncomplete
from airflow_provider_cdc.sinks import parquet
from airflow_provider_cdc.sinks.parquet import check_source
from airflow_provider_cdc.sinks.registry import open_sink
from harness.s3_server import s3_environment
from tests.seeds import some

FOLDER = "shop.orders"
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MYSQL = source_of("mysql", Facts({"server_uuid": SERVER}), "shop")
POSTGRES = source_of("postgres", Facts({"system_identifier": "7", "database": "shop", "timeline": "1"}), "pg")


def copy(number: int, published_at: datetime | None = None) -> dict[str, Any]:
    position = f"{SERVER}:1-{number}"
    return {
        # The order of the run ids is the reverse of the order of their positions.
        "run_id": f"202601{99 - number:02}T000000Z-00000000",
        "initial_gtid_set": position,
        "position": position,
        "recorded_at": "2026-01-01T00:00:00+00:00",
        "source": MYSQL,
        "published_at": (published_at or datetime.now(UTC)).isoformat(),
    }


def replace_latest(target: Storage, folder: str, copy: dict[str, Any]) -> bool:
    return parquet.replace_latest(target, folder, decode_copy(copy, ""))


@contextmanager
def no_lock(target: Storage, folder: str) -> Iterator[bool]:
    yield False


@pytest.fixture(params=some("lock", "claims", "s3", plain=2))
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "s3":
        for name, value in s3_environment(request.getfixturevalue("s3")).items():
            monkeypatch.setenv(name, value)
        return Storage(f"s3://lake/{tmp_path.name}")
    if request.param == "claims":
        monkeypatch.setattr(parquet, "_locked", no_lock)
    return Storage(tmp_path.as_uri())


def head(target: Storage) -> dict[str, Any]:
    found: dict[str, Any] = target.read_json(f"{FOLDER}/_latest.json")
    return found


def test_the_head_goes_by_position_and_never_back(target: Storage) -> None:
    assert replace_latest(target, FOLDER, copy(5))
    assert not replace_latest(target, FOLDER, copy(3))
    assert head(target) == copy(5) | {"published_at": head(target)["published_at"], "rows": 0}
    assert replace_latest(target, FOLDER, copy(5))
    assert replace_latest(target, FOLDER, copy(9))
    assert not replace_latest(target, FOLDER, copy(5))
    assert head(target)["position"] == f"{SERVER}:1-9"


def test_runs_that_publish_at_once_leave_the_newest(target: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays each read and write, as an object store does."""

    def slowly(method: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            time.sleep(random.uniform(0, 0.01))
            found = method(*arguments)
            time.sleep(random.uniform(0, 0.01))
            return found

        return slow

    for name in ("write_json", "read_json"):
        monkeypatch.setattr(Storage, name, slowly(getattr(Storage, name)))
    for round_ in range(4):
        folder = f"{FOLDER}{round_}"
        found: dict[int, bool] = {}

        def publish(number: int, folder: str = folder, found: dict[int, bool] = found) -> None:
            while number not in found:
                # On a busy machine, the others may keep replacing it for all rounds of one call.
                with suppress(PublishIncomplete):
                    found[number] = replace_latest(Storage(target.uri), folder, copy(number))

        threads = [
            threading.Thread(target=publish, args=(number,)) for number in random.Random(round_).sample(range(1, 8), 7)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert target.read_json(f"{folder}/_latest.json")["position"] == f"{SERVER}:1-7"
        assert len(found) == 7
        assert found[7]


@pytest.mark.slow
def test_a_run_without_conditional_writes_does_not_put_back_an_older_copy(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its read of the head and its write, a newer run publishes by a conditional write."""
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    target = Storage(f"s3://lake/{tmp_path.name}")
    assert replace_latest(target, FOLDER, copy(1))
    assert not target.exists(f"{FOLDER}/_claims")
    write = Storage.write_json
    newer: list[bool] = []

    def interrupted(self: Storage, name: str, data: Any) -> None:
        if name.endswith("_latest.json") and not newer:
            newer.append(True)
            with monkeypatch.context() as patch:
                patch.setattr(Storage, "has_conditional_writes", True)
                newer[0] = replace_latest(target, FOLDER, copy(9))
        write(self, name, data)

    monkeypatch.setattr(Storage, "write_json", interrupted)
    monkeypatch.setattr(Storage, "has_conditional_writes", False)
    assert not replace_latest(target, FOLDER, copy(5))
    assert newer == [True]
    assert head(target)["position"] == f"{SERVER}:1-9"


@pytest.mark.parametrize("decided", [timedelta(0), timedelta(days=3)])
def test_whoever_overwrote_a_newer_copy_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: timedelta
) -> None:
    """Without a lock: the newer run publishes between the older run's read and its write. The newer run may have been
    committed days before, or by a machine whose clock is wrong."""
    monkeypatch.setattr(parquet, "_locked", no_lock)
    target = Storage(tmp_path.as_uri())
    write = Storage.write_json
    met: list[bool] = []

    def overtaken(self: Storage, name: str, data: Any) -> None:
        if name.endswith("_latest.json") and not met:
            met.append(True)
            assert replace_latest(target, FOLDER, copy(9, datetime.now(UTC) - decided))
            assert head(target)["position"] == f"{SERVER}:1-9"
        write(self, name, data)

    monkeypatch.setattr(Storage, "write_json", overtaken)
    assert not replace_latest(target, FOLDER, copy(5))
    assert met
    assert head(target)["position"] == f"{SERVER}:1-9"


def test_claims_of_runs_long_past_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_locked", no_lock)
    target = Storage(tmp_path.as_uri())
    replace_latest(target, FOLDER, copy(5))
    (claim,) = target.files(f"{FOLDER}/_claims")
    written = time.time() - timedelta(days=2).total_seconds()
    os.utime(target.path(claim), (written, written))
    replace_latest(target, FOLDER, copy(6))
    assert target.files(f"{FOLDER}/_claims") == [f"{FOLDER}/_claims/{copy(6)['run_id']}.json"]


def test_a_lock_ends_with_its_holder_and_leaves_nothing(tmp_path: Path) -> None:
    target = Storage(tmp_path.as_uri())
    with parquet._locked(target, FOLDER) as alone:
        assert alone
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parquet, "_LOCK_SECONDS", 0.05)
            with pytest.raises(PublishIncomplete, match="another run"):
                replace_latest(target, FOLDER, copy(1))
    assert replace_latest(target, FOLDER, copy(1))
    assert target.files(FOLDER) == [f"{FOLDER}/_latest.json"]


def test_another_source_s_copies_are_left_alone(target: Storage) -> None:
    """`shop.accounts` of MySQL and of PostgreSQL: two tables of one name."""
    replace_latest(target, FOLDER, copy(5))
    before = head(target)
    other = {"run_id": "20270101T000000Z-00000000", "initial_lsn": "0/9", "position": "0/9", "source": POSTGRES}
    for refused in (
        lambda: check_source(target, FOLDER, POSTGRES, Lsn(9)),
        lambda: open_sink("parquet", target).check_source([TableName("shop", "orders")], POSTGRES, Lsn(9)),
        lambda: replace_latest(target, FOLDER, other),
    ):
        with pytest.raises(
            ConfigurationError, match=r"another source: .*mysql.*shop.*source of this run is .*postgres"
        ) as why:
            refused()
        assert "{source}" in why.value.hint
    assert head(target) == before
    check_source(target, FOLDER, MYSQL, GtidSet.parse(f"{SERVER}:1-5"))
    check_source(target, "shop.nothing", POSTGRES, Lsn(9))


def test_a_run_that_was_refused_leaves_nothing_that_others_take_for_a_newer_copy(target: Storage) -> None:
    """Both began before there was a copy. The other database has a later LSN, which is unrelated to this one's."""
    other = POSTGRES | {"server": "8"}

    def of(source: dict[str, str], lsn: str, day: int) -> dict[str, Any]:
        when = f"2026-01-{day:02}T00:00:00+00:00"
        return {
            "run_id": f"202601{day:02}T000000Z-00000000",
            "initial_lsn": lsn,
            "position": lsn,
            "source": source,
            "recorded_at": when,
            "published_at": datetime.now(UTC).isoformat(),
        }

    assert replace_latest(target, FOLDER, of(POSTGRES, "0/5", 1))
    with pytest.raises(ConfigurationError, match="another source"):
        replace_latest(target, FOLDER, of(other, "0/99", 3))
    assert replace_latest(target, FOLDER, of(POSTGRES, "0/7", 2))
    assert (head(target)["source"], head(target)["position"]) == (POSTGRES, "0/7")


def test_the_source_of_a_copy_that_does_not_say_it_is_in_its_run_s_manifest(tmp_path: Path) -> None:
    target = Storage(tmp_path.as_uri())
    target.write_json(f"{FOLDER}/_latest.json", {"run_id": "r1", "initial_lsn": "0/5"})
    check_source(target, FOLDER, POSTGRES, Lsn(9))
    identity = {"system_identifier": "8", "database": "shop", "timeline": "1"}
    target.write_json("_runs/r1/manifest.json", {"kind": "postgres", "identity": identity})
    with pytest.raises(ConfigurationError, match="another source"):
        check_source(target, FOLDER, POSTGRES, Lsn(9))


@pytest.mark.parametrize("damaged", [[], {}, {"run_id": 5}, "x", None])
def test_a_damaged_head_is_named(tmp_path: Path, damaged: Any) -> None:
    target = Storage(tmp_path.as_uri())
    target.write_json(f"{FOLDER}/_latest.json", damaged)
    with pytest.raises(ManifestError, match=r"_latest\.json"):
        replace_latest(target, FOLDER, copy(1))


def test_copies_of_which_only_the_run_is_known_go_by_the_order_of_the_runs(tmp_path: Path) -> None:
    target = Storage(tmp_path.as_uri())
    assert replace_latest(target, FOLDER, {"run_id": "20260102T000000Z-aaaaaaaa", "rows": 2})
    assert not replace_latest(target, FOLDER, {"run_id": "20260101T000000Z-ffffffff", "rows": 1})
    assert head(target)["rows"] == 2
    assert replace_latest(target, FOLDER, {"run_id": "20260102T000000Z-aaaaaaaa", "rows": 2})
    assert head(target)["rows"] == 2
    assert replace_latest(target, FOLDER, {"run_id": "20260103T000000Z-00000000", "rows": 3})
    assert head(target)["rows"] == 3
