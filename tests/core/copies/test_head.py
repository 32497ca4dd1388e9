"""The latest copy is the copy at the latest position of the source, in whatever order runs publish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.head import (
    decode_copy,
    encode_copy,
    is_newer,
    is_of_another,
    is_of_another_source,
)
from airflow_provider_cdc.core.copies.retention import copy_of
from airflow_provider_cdc.core.positions.as_of import parse_position
from airflow_provider_cdc.core.positions.facts import Facts, History, source_of
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Shard, Table, TableName
from airflow_provider_cdc.errors import ManifestError
from tests.runs import manifest_of

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fa47-71ca-11e1-9e33-c80aa9429562"
SOURCES = {
    "initial_gtid_set": source_of("mysql", Facts({"server_uuid": A}), "shop"),
    "initial_lsn": source_of(
        "postgres", Facts({"system_identifier": "7", "timeline": "1", "database": "shop"}), "shop"
    ),
}


def copy(
    position: str, recorded_at: str = "", run_id: str = "20260101T000000Z-00000000", number: int = 0, **source: str
) -> Any:
    key = "initial_lsn" if "/" in position else "initial_gtid_set"
    found: dict[str, Any] = {"run_id": run_id, key: position}
    if recorded_at:
        found |= {"position": position, "recorded_at": recorded_at, "source": SOURCES[key] | source}
    if number:
        found["history"] = {"id": "h", "number": number}
    return decode_copy(found, "")


def old(position: str, run_id: str) -> Any:
    """A record of a version that had no ``position``, no ``source`` and no ``recorded_at``."""
    return copy(position, run_id=run_id)


EARLY, LATE = "2026-01-01T15:00:00+00:00", "2026-01-01T19:41:00+00:00"
SCHEDULED_EARLY, SCHEDULED_LATE = "20260101T020000Z-ffffffff", "20260101T150000Z-00000000"


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        # A nightly for 02:00 that began at 19:41, and a run of 15:00.
        (copy(f"{A}:1-9", LATE, SCHEDULED_EARLY), copy(f"{A}:1-5", EARLY, SCHEDULED_LATE)),
        (copy("0/1000000", LATE, SCHEDULED_EARLY), copy("0/FFFFFF", EARLY, SCHEDULED_LATE)),
        # Positions decide, whatever the times are.
        (copy(f"{A}:1-9,{B}:1", EARLY), copy(f"{A}:1-9", LATE)),
        (copy("1/0", EARLY), copy("0/FFFFFFFF", LATE)),
        (copy(f"{A}:1", EARLY), copy("", LATE)),
        # If the positions do not decide, the times do.
        (copy(f"{A}:1-9", LATE), copy(f"{A}:1-8,{B}:1", EARLY)),
        (copy(f"{A}:1-9", LATE), copy(f"{A}:1-9", EARLY)),
        (copy("0/5", LATE, timeline="2"), copy("0/9", EARLY)),
        (copy("0/5", "2026-01-01T12:00:00-08:00"), copy("0/5", LATE)),
        # Positions of ended histories are unrelated to positions of later ones.
        (copy(f"{A}:1-5", EARLY, number=2), copy(f"{A}:1-9", LATE, number=1)),
        (copy("0/5", EARLY, number=3), copy("0/9", LATE, number=2)),
        (copy(f"{A}:1-9", EARLY, number=2), copy(f"{A}:1-5", LATE, number=2)),
        (copy(f"{A}:1-5", EARLY, number=2), copy(f"{A}:1-9", LATE)),
        (copy(f"{A}:1-9", EARLY, number=1), old(f"{A}:1-5", SCHEDULED_LATE)),
        # What earlier versions wrote.
        (copy(f"{A}:1-9", EARLY, SCHEDULED_EARLY), old(f"{A}:1-5", SCHEDULED_LATE)),
        (old("0/9", SCHEDULED_EARLY), old("0/5", SCHEDULED_LATE)),
        (old("0/5", SCHEDULED_LATE), old("0/5", SCHEDULED_EARLY)),
        (old(f"{A}:1-9", SCHEDULED_LATE), old(f"{B}:1", SCHEDULED_EARLY)),
        (copy("0/5", EARLY, SCHEDULED_LATE), copy("0/5", EARLY, SCHEDULED_EARLY)),
    ],
)
def test_of_two_copies_one_is_newer_whichever_is_asked(newer: Any, older: Any) -> None:
    assert is_newer(newer, older)
    assert not is_newer(older, newer)


MYSQL = SOURCES["initial_gtid_set"]
POSTGRES = SOURCES["initial_lsn"]


@pytest.mark.parametrize(
    ("found", "source", "position", "other"),
    [
        (copy(f"{A}:1-5", EARLY), MYSQL, f"{A}:1-9", False),
        (copy("0/5", EARLY), POSTGRES, "0/9", False),
        (copy("0/5", EARLY, timeline="2"), POSTGRES, "0/9", False),
        (copy("0/5", EARLY), MYSQL, f"{A}:1-9", True),
        (copy(f"{A}:1-5", EARLY), POSTGRES, "0/9", True),
        (old("0/5", SCHEDULED_EARLY), MYSQL, f"{A}:1-9", True),
        (old(f"{A}:1-5", SCHEDULED_EARLY), MYSQL, f"{A}:1-9", False),
        # Two connections to one server.
        (copy(f"{A}:1-5", EARLY, connection="other"), MYSQL, f"{A}:1-9", False),
        (copy("0/5", EARLY, database="other"), POSTGRES, "0/9", True),
        (copy("0/5", EARLY, server="8"), POSTGRES, "0/9", True),
        # A replica took over: it has all that was copied.
        (copy(f"{B}:1-5", EARLY, server=B), MYSQL, f"{A}:1,{B}:1-5", False),
        (copy(f"{B}:1-5", EARLY, server=B, connection="other"), MYSQL, f"{A}:1,{B}:1-5", True),
        # It lacks the last transactions of the copy, or all of them.
        (copy(f"{B}:1-5", EARLY, server=B), MYSQL, f"{A}:1,{B}:1-4", False),
        (copy(f"{B}:1-5", EARLY, server=B), MYSQL, f"{A}:1", True),
        (copy("", EARLY, server=B), MYSQL, f"{A}:1", True),
        (copy("no position", EARLY, server=B), MYSQL, f"{A}:1", True),
    ],
)
def test_another_source_is_told_by_kind_server_database_and_history(
    found: Any, source: dict[str, str], position: str, other: bool
) -> None:
    assert is_of_another_source(found, source, parse_position(position)) is other


@pytest.mark.parametrize(
    ("of_b", "of_a", "history", "other"),
    [
        (f"{B}:1-5", f"{A}:1,{B}:1-5", {}, False),
        (f"{B}:1-5", f"{A}:1,{B}:1-6", {}, False),
        # Both servers have accepted writes, and no run has found that the history of one of them has ended.
        (f"{B}:1-5", f"{A}:1,{B}:1-4", {}, True),
        (f"{B}:1-5", f"{A}:1,{B}:1-4", {"id": "h2", "superseded": [{"id": "h1", "run_id": "r0"}]}, False),
        (f"{B}:1-5", f"{A}:1,{B}:1-4", {"id": "h2", "superseded": [{"id": "h0", "run_id": "r0"}]}, True),
        (f"{B}:1-5", f"{A}:1", {"id": "h2", "superseded": [{"id": "h1", "run_id": "r0"}]}, True),
    ],
)
def test_copies_of_two_servers_are_of_one_source_if_one_follows_the_other(
    of_b: str, of_a: str, history: dict[str, Any], other: bool
) -> None:
    old = replace(copy(of_b, EARLY, server=B), run_id="r1", history={"id": "h1"})
    new = replace(copy(of_a, LATE, server=A), run_id="r2", history=history)
    assert is_of_another(old, new) is is_of_another(new, old) is other


def test_what_a_later_version_added_is_kept_and_nothing_is_added_to_what_an_earlier_one_wrote() -> None:
    for data in (
        {"run_id": "r", "initial_lsn": "0/5"},
        {"run_id": "r", "position": "0/5", "history": {"id": "h", "number": 2, "added": [1]}},
        {"run_id": "r", "position": "0/5", "rows": 3, "pages": ["a"], "lineage": {"of": "r0"}},
    ):
        assert encode_copy(decode_copy(data, "")) == data | {"rows": data.get("rows", 0)}


@pytest.mark.parametrize("data", [None, [], {}, {"run_id": 5}, {"run_id": "r", "rows": "3"}])
def test_what_does_not_tell_of_a_copy_is_named(data: Any) -> None:
    with pytest.raises(ManifestError, match="a copy: the record is damaged"):
        decode_copy(data, "a copy")


def test_times_without_a_zone_are_compared_as_utc() -> None:
    """An operator who restored a head by hand may have written such times."""
    zoned, bare = copy(f"{A}:1-5", LATE), copy(f"{B}:1-5", EARLY.removesuffix("+00:00"))
    assert is_newer(zoned, bare)
    assert not is_newer(bare, zoned)


def test_a_source_of_which_no_kind_is_known_is_another_one() -> None:
    assert is_of_another_source(copy(f"{A}:1-5", EARLY), {"server": B}, parse_position(f"{A}:1-9"))


def test_a_merged_copy_belongs_to_the_history_of_its_shards(tmp_path: Path) -> None:
    merged = TableName("shop", "orders")
    shard = Shard(merged, (), ("id",))
    tables = tuple(RunTable(Table(TableName("eu", name), (), shard=shard), "watermark", "") for name in "ab")
    histories = {f"eu.{name}": History("h", 2) for name in "ab"}
    lake = Storage(tmp_path.as_uri())
    runs = [
        Run.create(
            manifest_of(
                lake,
                run_id,
                identity=Facts({"server_uuid": A}),
                initial_position=position,
                tables=tables,
                histories=of_run,
            )
        )
        for run_id, position, of_run in (
            ("20260101T000000Z-00000000", f"{A}:1-90", {}),
            ("20260102T000000Z-00000000", f"{A}:1-5", histories),
        )
    ]
    earlier, after_a_reset = (copy_of(run, merged) for run in runs)
    assert after_a_reset.history["number"] == 2
    assert is_newer(after_a_reset, earlier)
