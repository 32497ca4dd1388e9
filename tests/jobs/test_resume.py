"""Running an interrupted step again completes it, wherever it was interrupted. A finished step is left unchanged."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.errors import ManifestError, SourceUnavailable
from airflow_provider_cdc.jobs.consolidate import step as consolidate
from airflow_provider_cdc.jobs.snapshot import step as snapshot
from tests.interrupting import Interrupted, interrupt_at
from tests.jobs import history_source
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, SETTINGS, HistorySource, at, random_history

LENGTH, INITIAL = 60, 25


@pytest.fixture
def source() -> HistorySource:
    return HistorySource(random_history(random.Random(5), LENGTH), 5)


def tree(folder: Storage) -> dict[str, bytes]:
    """Every file below a folder."""
    root = Path(folder.path())
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_publishing_that_is_interrupted_anywhere_is_completed(
    here: MakeRunner, source: HistorySource, tmp_path: Path
) -> None:
    runner = here(source, INITIAL)
    for step in runner.steps()[:2]:
        step()
    shutil.copytree(tmp_path / "lake", tmp_path / "ready")
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(tmp_path / "ready", tmp_path / "lake")
        publish = runner.steps()[2]
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                publish()
                interrupted = False
            except Interrupted:
                pass
        announced = [name for name in NAMES if runner.target.exists(f"{name}/_latest.json")]
        assert Run.load(runner.run).committed or not announced
        found = publish()
        assert runner.published() == runner.expected(), f"interrupted at change {number}"
        assert found == Run.load(runner.run).steps["consolidate"]
    assert number > 20


@pytest.mark.slow
def test_an_interrupted_snapshot_keeps_what_is_finished(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = here(source, INITIAL)
    read: list[str] = []
    original = history_source._Reader.read

    def counting(fail_at: int) -> Callable[..., Any]:
        def reading(self: Any, chunk: Chunk) -> Any:
            if len(read) == fail_at:
                raise Interrupted
            read.append(f"{self._index} {chunk.number}")
            return original(self, chunk)

        return reading

    monkeypatch.setattr(history_source._Reader, "read", counting(4))
    monkeypatch.setattr("airflow_provider_cdc.jobs.snapshot.parts.SMALLEST_PART_BYTES", 1)
    with pytest.raises(Interrupted):
        runner.steps()[0]()
    plan = runner.run.read_json("chunks/plan.json")["orders"]
    monkeypatch.setattr(history_source._Reader, "read", counting(-1))
    runner.all()
    chunks = [f"{part['table']} {chunk['number']}" for part in plan for chunk in part["chunks"]]
    assert sorted(read) == sorted(chunks)
    assert runner.published() == runner.expected()


@pytest.mark.slow
def test_rows_read_for_another_initial_position_do_not_count(here: MakeRunner, source: HistorySource) -> None:
    here(source, 0).steps()[0]()
    runner = here(source, INITIAL)
    runner.all()
    assert runner.published() == runner.expected()


@pytest.mark.slow
def test_parts_of_another_plan_do_not_count(here: MakeRunner, source: HistorySource) -> None:
    """A try that was presumed dead may have cut the tables elsewhere: its part 3 is not this one's."""
    runner = here(source, INITIAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_cdc.jobs.snapshot.parts.SMALLEST_PART_BYTES", 1)
        patch.setattr(Run, "finish_step", lambda *arguments: arguments[2])
        runner.steps()[0]()
    runner.run.delete_file("chunks/plan.json")
    source.seed += 1
    runner.all()
    assert runner.published() == runner.expected()


def test_steps_of_a_finished_run_change_nothing(here: MakeRunner, source: HistorySource) -> None:
    runner = here(source, INITIAL)
    found = [step() for step in runner.steps()]
    files = tree(runner.target)
    assert [step() for step in runner.steps()] == found
    assert tree(runner.target) == files


@pytest.mark.slow
def test_a_finished_run_holds_its_manifest_and_what_it_published(here: MakeRunner, source: HistorySource) -> None:
    runner = here(source, INITIAL)
    found = runner.all()
    names = set(tree(runner.target))
    kept = {name.removeprefix(f"_runs/{runner.run.uri[-25:]}/") for name in names if name.startswith("_runs/")}
    # Stores without conditional writes hold an election for each entry, so there are no more than these.
    chain = Run.load(runner.run).state.chain
    steps = {f"ledger/{at:06}-{name}.json" for at, name in enumerate(("begin", *chain[:-1]), 1)}
    assert len(steps) == len("Begun ReadsEnded Extracted FilesCommitted CopiesPublished".split())
    own = {"published.json", "latest.json", "timeline.json"}
    # On a slow machine, the step had time to write its progress.
    kept -= {"progress.json"}
    (files,) = kept - steps - own
    assert kept == {*own, files} | steps
    assert files.startswith("commit/files-")
    assert found.published == {name: f"{runner.target.uri}/{name}/snapshot=20260101T000000Z-00000000" for name in NAMES}
    latest = json.loads(Path(runner.target.path("shop.empty/_latest.json")).read_text())
    (file,) = latest.pop("files")
    assert file["rows"] == 0
    assert f"shop.empty/snapshot={latest['run_id']}/{file['name']}" in names
    assert latest == {
        "run_id": "20260101T000000Z-00000000",
        "path": found.published["shop.empty"],
        "initial_gtid_set": str(at(INITIAL)),
        "position": str(at(INITIAL)),
        "recorded_at": "2026-01-01T00:00:00+00:00",
        "source": {"kind": "mysql"},
        "rows": 0,
        "published_at": found.published_at,
    }


@pytest.mark.slow
def test_an_older_run_that_ends_later_does_not_become_the_latest(here: MakeRunner, source: HistorySource) -> None:
    older = here(source, 10, run_id="20260101T000000Z-00000000")
    *before, last = older.steps()
    for step in before:
        step()
    newer = here(source, INITIAL, run_id="20260102T000000Z-00000000")
    newer.all()
    expected = newer.expected()
    source.initial = 10
    last()
    assert newer.published() == expected


def test_a_step_whose_forerunner_is_not_finished_is_refused(here: MakeRunner, source: HistorySource) -> None:
    runner = here(source, INITIAL)
    _, extract, publish = runner.steps()
    with pytest.raises(ManifestError, match="snapshot of this run is not finished"):
        extract()
    with pytest.raises(ManifestError, match="extract_delta of this run is not finished"):
        publish()


@pytest.mark.slow
def test_a_slow_try_of_a_step_does_not_replace_what_a_quick_one_found(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = here(source, INITIAL)
    first, *rest = runner.steps()
    original = HistorySource.bound_reads

    def slow(self: HistorySource) -> Any:
        # In the meantime, the other try does the whole step.
        monkeypatch.setattr(HistorySource, "bound_reads", original)
        quick.append(first())
        self.seed += 1
        return original(self)

    quick: list[SnapshotResult] = []
    monkeypatch.setattr(HistorySource, "bound_reads", slow)
    assert first() == quick[0]
    for step in rest:
        step()
    assert runner.published() == runner.expected()


@pytest.mark.slow
def test_a_failure_to_clean_up_is_no_failure(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Storage, name: str) -> None:
        raise OSError("read-only file system")

    runner = here(source, INITIAL)
    monkeypatch.setattr(Storage, "delete_folder", refuse)
    runner.all()
    assert "could not remove the work files" in capsys.readouterr().out
    assert runner.published() == runner.expected()


@pytest.mark.slow
def test_the_source_is_not_needed_once_the_run_is_published(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = here(source, INITIAL)
    found = runner.all()

    def gone(*arguments: Any) -> None:
        raise SourceUnavailable("the server is gone")

    monkeypatch.setattr(HistorySource, "check_identity", gone)
    assert consolidate.consolidate(runner.spark, runner.run, SETTINGS) == found
    assert snapshot.snapshot(runner.spark, runner.run, SETTINGS).rows > 0


def test_a_throttled_snapshot_pauses_between_chunks(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Runner = here(source, INITIAL)
    begun = Run.load(runner.run)
    options = replace(begun.manifest.options, chunk_pause=0.173)
    Run.create(replace(begun.manifest, options=options), after=begun)
    pauses: list[float] = []
    sleep = time.sleep

    def recorded(seconds: float) -> None:
        # Other threads of this process sleep, too.
        if seconds == 0.173:
            pauses.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr("time.sleep", recorded)
    runner.steps()[0]()
    parts = runner.run.read_json("chunks/plan.json")["orders"]
    assert pauses == [0.173] * sum(len(part["chunks"]) - 1 for part in parts)
    assert pauses
