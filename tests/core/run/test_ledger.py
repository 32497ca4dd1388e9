"""The decisions of a run have one order, whatever attempts, clean-ups and stores do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.retention import remove_folder
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.commit_record import published_run, write_published
from airflow_provider_cdc.core.run.ledger import (
    FIRST,
    Begun,
    CopiesPublished,
    Ended,
    Entry,
    Extracted,
    FilesCommitted,
    Ledger,
    Link,
    Moved,
    PieceTaken,
    ReadsEnded,
    State,
)
from airflow_provider_cdc.core.run.manifest import Manifest, RunStart, RunTable
from airflow_provider_cdc.core.run.results import DeltaResult
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ManifestError, StorageUnavailable
from tests.runs import consolidate_result, delta_result, manifest_of, publish, run_folder, snapshot_result


def piece(number: int, start: str, end: str, token: str = "try") -> Link:
    return Link(number, token, LogEnd(start), LogEnd(end), end, "", 0, number + 1, "record")


@pytest.fixture
def lake(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.fixture
def folder(lake: Storage) -> Storage:
    return run_folder(lake)


@pytest.fixture
def manifest(lake: Storage) -> Manifest:
    return manifest_of(lake, initial_position="a:1")


BEGUN, MOVED = Begun(manifest_of(Storage("file:///lake"))), Moved(manifest_of(Storage("file:///lake")))
PIECE, READ = PieceTaken("1", piece(1, "", "5")), ReadsEnded(snapshot_result())
DELTA, FILES = Extracted(delta_result()), FilesCommitted("files", "try")
PUBLISHED, ENDED = CopiesPublished(consolidate_result()), Ended("stopped")
ALL: tuple[Entry, ...] = (BEGUN, MOVED, PIECE, READ, DELTA, FILES, PUBLISHED, ENDED)


@pytest.mark.parametrize(
    ("before", "following"),
    [
        ((), [BEGUN]),
        ((BEGUN,), [BEGUN, MOVED, PIECE, READ, ENDED]),
        ((BEGUN, PIECE), [BEGUN, MOVED, READ, ENDED]),
        ((BEGUN, READ), [BEGUN, MOVED, DELTA, ENDED]),
        ((BEGUN, READ, DELTA), [BEGUN, MOVED, FILES, ENDED]),
        ((BEGUN, READ, DELTA, FILES), [PUBLISHED]),
        ((BEGUN, READ, DELTA, FILES, PUBLISHED), []),
        ((BEGUN, READ, ENDED), [BEGUN]),
        ((BEGUN, READ, MOVED), [BEGUN, MOVED, PIECE, READ, ENDED]),
        ((BEGUN, ENDED, BEGUN), [BEGUN, MOVED, PIECE, READ, ENDED]),
    ],
)
def test_what_may_follow(before: tuple[Entry, ...], following: list[Entry]) -> None:
    state = State()
    for number, entry in enumerate(before):
        assert state.permits(entry)
        state = state.after(str(number), entry)
    assert [entry for entry in ALL if state.permits(entry)] == following


def test_of_two_attempts_one_decides(manifest: Manifest, folder: Storage) -> None:
    """Two attempts append to the same state. The loser sees the entry of the other one, and nothing of its own."""
    Run.create(manifest)
    attempts = [Ledger(folder) for _ in range(8)]
    states = [ledger.state() for ledger in attempts]

    def append(at: int) -> bool:
        return attempts[at].append(states[at], ReadsEnded(snapshot_result(at))) is not None

    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(append, range(8)))
    assert sorted(first) == [False] * 7 + [True]
    found = {json.dumps([*ledger.state().chain]) for ledger in attempts}
    assert len(found) == 1
    assert Ledger(folder).state().steps == {"snapshot": snapshot_result(first.index(True))}


def test_an_entry_of_a_removed_run_joins_no_other_history(manifest: Manifest, folder: Storage) -> None:
    """L1. An attempt knows the run by its first entry. The run was removed, and has begun again under its id since."""
    zombie = Run.create(manifest)
    ledger = Ledger(folder)
    known = ledger.state()
    remove_folder(zombie, "clean-up")
    again = Run.create(manifest)
    assert not ledger.append(known, ReadsEnded(snapshot_result(9)))
    assert Run.load(folder).state == again.state
    with pytest.raises(RunRestarted):
        zombie.finish_step("snapshot", snapshot_result(9))
    assert not zombie.take_piece("", piece(1, "", "5"))
    assert zombie.end("clean-up").ended is None
    assert Run.load(folder).state == again.state


@pytest.mark.parametrize("when", ["before the entry", "while it is written", "but for the other files"])
def test_an_entry_after_a_clean_up_does_not_count(
    manifest: Manifest, folder: Storage, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3. The clean-up removes the run between the last look of an attempt and its entry, or just then. It may be
    killed when it has deleted one file."""
    run, create, delete = Run.create(manifest), Storage.create_json, Storage.delete_file
    folder.write_json("a/file.json", {})
    ledger = Ledger(folder)
    known = ledger.state()

    def killed(*arguments: Any) -> None:
        delete(*arguments)
        raise KeyboardInterrupt

    if when == "but for the other files":
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "delete_file", killed)
            with pytest.raises(KeyboardInterrupt):
                remove_folder(run, "clean-up")
        assert folder.exists("a/file.json")

    def removed(*arguments: Any) -> bool:
        if when == "while it is written":
            remove_folder(run, "clean-up")
        return create(*arguments)

    if when == "before the entry":
        remove_folder(run, "clean-up")
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", removed)
        assert not ledger.append(known, READ)
    assert not Run.exists(folder)
    assert Ledger(folder).state() == State()


@pytest.mark.parametrize("since", ["moved", "begun anew", "ended"])
def test_a_net_change_from_before_a_move_does_not_count(manifest: Manifest, folder: Storage, since: str) -> None:
    """L2. An attempt computes the net change. Meanwhile, the run goes to another position. Its reads end there, so that
    a net change is missing there, too."""
    Run.create(manifest).finish_step("snapshot", snapshot_result(1))
    slow, quick = Run.load(folder), Run.load(folder)
    later = replace(manifest, initial_position="a:9")
    if since == "moved":
        assert quick.move(later, {})
    if since == "ended":
        assert quick.end("clean-up").ended is not None
    if since != "moved":
        Run.create(later, after=Run.load(folder))
    present = Run.load(folder)
    present.finish_step("snapshot", snapshot_result(2))
    with pytest.raises(RunRestarted):
        slow.finish_step("extract_delta", delta_result(7))
    with pytest.raises(RunRestarted):
        slow.record_commit("commit/files-0.json", "slow")
    assert Run.load(folder).state == present.state
    assert present.finish_step("extract_delta", delta_result(8)).transactions == 8


def test_a_run_does_not_move_from_a_state_that_is_no_longer_the_present_one(
    manifest: Manifest, folder: Storage
) -> None:
    Run.create(manifest)
    mine, other = Run.load(folder), Run.load(folder)
    assert other.take_piece("", piece(1, "", "5"))
    assert not mine.move(replace(manifest, initial_position="a:3"), {})
    mine.refresh()
    assert mine.move(replace(manifest, initial_position="a:9"), {})
    moved = Run.load(folder)
    assert (moved.manifest.initial_position, moved.generation, moved.pieces()) == ("a:9", 2, ())
    assert not other.take_piece("", piece(2, "5", "7"))
    with pytest.raises(RunRestarted):
        other.refresh()


def test_the_last_piece_of_each_start_is_part_of_the_move(manifest: Manifest, folder: Storage) -> None:
    """No piece has changes from both sides of the position. So the log since a start without pieces is read late."""
    Run.create(manifest)
    run = Run.load(folder)
    assert run.take_piece("1", piece(1, "", "5"))
    first = RunStart(manifest.initial_position, manifest.identity)
    later = replace(manifest, initial_position="a:9", start="2", starts={"1": first})
    run.refresh()
    assert not run.move(later, {"1": piece(2, "6", "9")}), "it does not join"
    assert run.move(later, {"1": piece(2, "5", "9")})
    moved = Run.load(folder)
    assert ([link.end for link in moved.pieces("1")], moved.state.before) == (["5", "9"], {"1": 2})
    assert moved.take_piece("1", piece(3, "9", "10"))
    moved.refresh()
    assert moved.move(replace(later, start="3", starts={"1": first, "2": first}), {})
    moved = Run.load(folder)
    assert moved.state.before == {"1": 3, "2": 0}
    assert not moved.take_piece("2", piece(1, "", "5"))
    assert moved.take_piece("3", piece(1, "", "5"))


def test_the_pieces_of_a_start_join_and_other_entries_do_not_part_them(manifest: Manifest, folder: Storage) -> None:
    Run.create(manifest)
    one, two = Run.load(folder), Run.load(folder)
    assert one.take_piece("", piece(1, "", "5", "one"))
    assert not two.take_piece("", piece(1, "", "7", "two"))
    assert not two.take_piece("", piece(2, "7", "9", "two")), "it does not begin where the last piece ends"
    assert one.take_piece("", piece(2, "5", "9", "one"))
    assert [link.end for link in two.pieces()] == ["5", "9"]
    # The result rests on the manifest and the steps. Pieces that were recorded meanwhile do not void it.
    assert two.state.pieces == {}
    two.finish_step("snapshot", snapshot_result(1))
    assert not one.take_piece("", piece(3, "9", "11", "one")), "the reads have ended"


@pytest.mark.parametrize("answer", ["an error", "taken"])
def test_an_entry_counts_although_the_answer_of_the_store_is_lost(
    manifest: Manifest, folder: Storage, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks again may be told that the name is taken: by its own entry."""
    run, create = Run.create(manifest), Storage.create_json

    def lost(*arguments: Any) -> bool:
        create(*arguments)
        if answer == "an error":
            raise StorageUnavailable("timed out")
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", lost)
        if answer == "an error":
            with pytest.raises(StorageUnavailable):
                run.finish_step("snapshot", snapshot_result(1))
        else:
            assert run.finish_step("snapshot", snapshot_result(1)).rows == 1
    assert run.finish_step("snapshot", snapshot_result(2)).rows == 1
    assert Run.load(folder).steps == {"snapshot": snapshot_result(1)}
    later = replace(manifest, initial_position="a:9")
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", lost)
        if answer == "taken":
            assert run.move(later, {}), "an attempt that does not know that it has moved the run drops the new slot"
        else:
            with pytest.raises(StorageUnavailable):
                run.move(later, {})
    assert Run.load(folder).manifest == later


def test_an_error_of_the_store_before_the_entry_leaves_nothing(
    manifest: Manifest, folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(manifest)

    def fails(*arguments: Any) -> bool:
        raise StorageUnavailable("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", fails)
        with pytest.raises(StorageUnavailable):
            run.finish_step("snapshot", snapshot_result(1))
    assert Run.load(folder).steps == {}


def test_a_long_ledger_is_read_once(manifest: Manifest, folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(manifest)
    for number in range(1, 31):
        assert run.take_piece("", piece(number, str(number - 1 or ""), str(number)))
    ledger, names = Ledger(folder), list[str]()
    read = Storage.read_json

    def counted(storage: Storage, name: str) -> Any:
        names.append(name)
        return read(storage, name)

    monkeypatch.setattr(Storage, "read_json", counted)
    assert len(ledger.state().pieces["1"]) == 30
    assert len(names) == len({*names}) == 32
    names.clear()
    assert len(ledger.state().pieces["1"]) == 30
    assert len(names) == 2, "the first entry, and the next one, which does not exist"
    # A store may not list new entries yet.
    monkeypatch.setattr(Storage, "files", lambda *arguments: [])
    assert Ledger(folder).state() == ledger.state()


@pytest.mark.parametrize("text", ["", "{", "[]x", "[]", "null", "{}", "3", '{"kind": "Begun"}', '{"kind": "Unknown"}'])
@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_entry_is_named(manifest: Manifest, folder: Storage, number: int, text: str) -> None:
    Run.create(manifest).finish_step("snapshot", snapshot_result(1))
    path = Path(folder.path(sorted(folder.files("ledger"))[number - 1]))
    path.write_text(text)
    with pytest.raises(ManifestError, match=path.name):
        Run.load(folder)


def test_an_entry_that_cannot_follow_is_refused(manifest: Manifest, folder: Storage) -> None:
    run = Run.create(manifest)
    name = f"ledger/000002-{run.digest}.json"
    folder.write_json(name, {"kind": "FilesCommitted", "token": "", "entry": {"record": "files", "token": "x"}})
    with pytest.raises(ManifestError, match="cannot follow"):
        Run.load(folder)


def test_a_later_version_of_the_manifest_is_refused_with_a_hint(manifest: Manifest, folder: Storage) -> None:
    Run.create(manifest)
    begun = folder.read_json(FIRST)
    begun["entry"]["manifest"]["format"] = 99
    folder.write_json(FIRST, begun)
    with pytest.raises(ManifestError, match="has format 99") as told:
        Run.load(folder)
    assert "finish the run with the version that began it" in told.value.hint


def test_the_result_of_a_step_is_that_of_the_ledger(manifest: Manifest, folder: Storage) -> None:
    run = Run.create(manifest)
    run.finish_step("snapshot", snapshot_result(1))
    run.finish_step("extract_delta", delta_result(2))
    assert run.state == Run.load(folder).state
    assert run.result_of(DeltaResult) == delta_result(2)


@pytest.mark.parametrize(("at_upper", "position"), [(False, ""), (True, "a:9")])
def test_a_server_without_transactions_has_an_empty_position(
    manifest: Manifest, folder: Storage, at_upper: bool, position: str
) -> None:
    """The empty GTID set. The position at which the reads end is another one, and is that of the run only if asked."""
    table = RunTable(Table(TableName("s", "t"), (), ("id",)), "watermark", "", at_upper=at_upper)
    run = Run.create(replace(manifest, initial_position="", tables=(table,)))
    if not at_upper:
        assert run.position_text == ""
    else:
        with pytest.raises(ManifestError, match="snapshot of this run is not finished"):
            _ = run.position_text
    run.finish_step("snapshot", snapshot_result(snapshot_upper="a:9"))
    assert (run.position_text, Run.load(folder).position_text) == (position, position)
    publish(run)
    write_published(run)
    assert published_run(folder.parent(), run.run_id).position_text == position
