"""Unions are compared by the positions of all their sources, and their commits never change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.head import Copy, decode_copy, encode_copy, is_newer, is_of_another_source
from airflow_provider_cdc.core.shards.copy_tables import merged_source, position_entry
from airflow_provider_cdc.core.shards.union import (
    Member,
    MemberAsked,
    Union,
    check_same_members,
    missing_shards,
    read_commit,
    record_commit,
    unfit_as_of,
    unfit_sources,
)
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ManifestError

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def entry(source: str, last: int, run: str, at: str = "2026-01-01T00:00:00+00:00", number: int = 1) -> dict[str, Any]:
    server = {"kind": "mysql", "connection": source, "server": f"server of {source}"}
    told = position_entry(source, run, "initial_gtid_set", f"{SERVER}:1-{last}", at, server)
    return {**told, "history": {"id": str(number), "number": number}}


def copy(run_id: str, at: str, *entries: dict[str, Any]) -> Copy:
    return Copy(run_id, recorded_at=at, source=merged_source(entries), positions=entries)


def test_the_later_positions_decide_which_union_is_newer() -> None:
    # The clocks of machines differ, so the times do not decide.
    old = copy("9", "2026-02-02T00:00:00+00:00", entry("eu", 5, "a"), entry("us", 7, "b"))
    new = copy("1", "2026-01-01T00:00:00+00:00", entry("eu", 5, "a"), entry("us", 8, "c"))
    assert (is_newer(new, old), is_newer(old, new)) == (True, False)
    # A server that was set back begins a new history, with smaller positions.
    set_back = copy("2", "2026-01-01T00:00:00+00:00", entry("eu", 2, "d", number=2), entry("us", 8, "c"))
    assert (is_newer(set_back, new), is_newer(new, set_back)) == (True, False)
    # Only the sources that both have are compared.
    joined = copy("3", "2026-01-01T00:00:00+00:00", entry("us", 9, "e"), entry("asia", 1, "f"))
    assert (is_newer(joined, old), is_newer(old, joined)) == (True, False)
    assert decode_copy(encode_copy(new), "here") == new


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("postgres", "0/900", "0/500"), ("mysql", f"{SERVER}:1-9", f"{SERVER}:1-5")]
)
def test_sources_that_moved_to_other_servers_do_not_stop_the_unions(kind: str, before: str, after: str) -> None:
    def union(run: str, position: str, day: str, number: int) -> Copy:
        entries = []
        for name in ("eu", "us"):
            source = {"kind": kind, "server": f"{name} of run {run}", "timeline": "1"}
            told = position_entry(name, run, "key", position, day, source)
            entries.append({**told, "history": {"id": run, "number": number}})
        return copy(run, day, *entries)

    # The old servers may have been set back once. The new ones begin with history 1, at smaller positions.
    for number in (1, 2):
        old = union("8", before, "2026-01-01T00:00:00+00:00", number)
        new = union("9", after, "2026-01-02T00:00:00+00:00", 1)
        assert (is_newer(new, old), is_newer(old, new)) == (True, False)


def test_positions_are_in_order_only_if_they_were_recorded_in_order() -> None:
    def union(*times: str) -> Union:
        positions = [entry("eu", 5, "1", times[0]), entry("us", 5, "2", times[1])]
        return Union("u", tuple(Member(one["source"], "", "", "", "", one) for one in positions), {}, "", "")

    early, late = "2026-01-01T09:00:00+02:00", "2026-01-01T08:00:00+00:00"
    assert union(early, late).in_order
    # The records of the first run were removed, and its task was cleared: it has another position now.
    assert not union(late, early).in_order


def test_a_copy_of_one_source_does_not_replace_a_union() -> None:
    union = copy("1", "", entry("eu", 5, "a"), entry("us", 7, "b"))
    for source in (entry("eu", 9, "a"), {"kind": "mysql", "connection": "eu, us", "server": SERVER}):
        one = {"kind": "mysql", "connection": str(source.get("source", "eu, us")), "server": str(source["server"])}
        assert is_of_another_source(union, one, None)
        assert is_of_another_source(Copy("1", source=one), union.source, None)
    assert not is_of_another_source(union, merged_source([entry("asia", 1, "f")]), None)


def test_a_commit_never_changes(tmp_path: Path) -> None:
    folder = Storage(tmp_path.as_uri()).folder("_merged", "u")
    member = Member("eu", "file:///r/1", "1", "digest", "commit/files-1.json", entry("eu", 5, "1"))
    first = Union("u", (member,), {}, "", "now")
    assert read_commit(folder) is None
    assert record_commit(folder, first) == first
    other = replace(first, members=(replace(member, run_uri="file:///r/2"),))
    assert record_commit(folder, other) == first
    check_same_members(first, [MemberAsked("eu", "file:///r/1")], {"eu": "digest"}, folder)
    # The folder of the run was removed.
    check_same_members(first, [MemberAsked("eu", "file:///r/1")], {}, folder)
    # Another run; and the same run, which began again.
    for uri, manifests in (("file:///r/2", {}), ("file:///r/1", {"eu": "other digest"})):
        with pytest.raises(ManifestError, match="unites other runs"):
            check_same_members(first, [MemberAsked("eu", uri)], manifests, folder)
    moved = Storage(tmp_path.as_uri()).folder("_merged", "v")
    moved.write_json("commit.json", folder.read_json("commit.json"))
    with pytest.raises(ManifestError, match="another union"):
        read_commit(moved)


def test_missing_shards_need_a_confirmation() -> None:
    before = [{"shard": name} for name in ("eu:a.x", "eu:a.y", "us:a.x")]
    assert missing_shards(before, ["eu:a.x"], ()) == ["eu:a.y", "us:a.x"]
    assert missing_shards(before, ["eu:a.x"], ["us"]) == ["eu:a.y"]
    assert missing_shards(before, ["eu:a.x"], ["us", "eu:a.y"]) == []


def test_sources_that_cannot_be_merged() -> None:
    def source(name: str, **facts: str) -> dict[str, str]:
        return {"kind": "postgres", "connection": name, "server": "7", **facts}

    one = source("eu", database="eu")
    assert unfit_sources({"eu": one, "us": source("us", database="us")}) == ("", "")
    assert unfit_sources({"eu": one, "us": source("us", server="8", database="eu")}) == ("", "")
    # A server that does not tell what it is.
    assert unfit_sources({"eu": source("eu", server=""), "us": source("us", server="")}) == ("", "")
    assert "eu and us lead to one server" in unfit_sources({"eu": one, "us": source("us", database="eu")})[0]
    assert (
        "of different kinds (eu is postgres, us is mysql)"
        in unfit_sources({"eu": one, "us": source("us", kind="mysql")})[0]
    )
    assert unfit_as_of("") == unfit_as_of("2026-01-31T00:00:00Z") == ("", "")
    for position in ("16/B374D848", f"{SERVER}:1-7"):
        assert f"{position} is a position" in unfit_as_of(position)[0]
