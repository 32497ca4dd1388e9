"""Files and records that differ from what was written are never published: they are read again, or end the run."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ConfigurationError, FileDamaged, ManifestError
from airflow_provider_cdc.sinks.parquet import ParquetSink
from tests.interrupting import Interrupted
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import HistorySource, random_history

LENGTH, INITIAL = 40, 15


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def lose_rows(path: Path) -> None:
    """A valid file that lacks one row: only its record shows this."""
    rows = pq.read_table(path)
    pq.write_table(rows.slice(1), path)


def lose(path: Path) -> None:
    path.unlink()


DAMAGE = [cut, flip, lose_rows, lose]


@pytest.fixture
def source() -> HistorySource:
    return HistorySource(random_history(random.Random(5), LENGTH), 5)


@pytest.fixture
def runner(here: MakeRunner, source: HistorySource) -> Runner:
    return here(source, INITIAL)


def files_of(runner: Runner, pattern: str) -> list[Path]:
    return sorted(Path(runner.run.path()).glob(pattern), key=lambda path: (path.stat().st_size, path))


def nothing_is_published(runner: Runner) -> bool:
    root = Path(runner.target.path())
    return not [*root.glob("*/_latest.json"), *root.glob("*/snapshot=*/*")]


@contextmanager
def put_back(path: Path) -> Iterator[None]:
    """Restore the file at the end, so that one run shows the effect of several damages, one after the other."""
    content = path.read_bytes()
    yield
    path.write_bytes(content)


@pytest.mark.slow
def test_a_damaged_file_is_not_published(runner: Runner) -> None:
    snapshot, extract, publish = runner.steps()
    snapshot()
    changes = runner.run.read_json(extract().record)["files"][-1]["name"]
    for path, message in (
        (files_of(runner, "chunks/*/*.parquet")[-1], r"chunks/.*\.parquet: .*\n  Hint: .* trigger a new run"),
        (Path(runner.run.path(changes)), "net change of the window"),
    ):
        for damage in DAMAGE:
            with put_back(path):
                damage(path)
                # It is not retried forever: a second try reports the same.
                for _ in range(2):
                    with pytest.raises(FileDamaged, match=message):
                        publish()
                    assert nothing_is_published(runner), damage.__name__
    publish()
    assert runner.published() == runner.expected()


def test_a_damaged_file_of_untouched_tables_is_not_published(here: MakeRunner, source: HistorySource) -> None:
    """Nothing else would open it."""
    runner = here(source, LENGTH)
    snapshot, extract, publish = runner.steps()
    snapshot()
    assert sum(extract().keys.values()) == 0
    path = files_of(runner, "chunks/*/*.parquet")[-1]
    for damage in DAMAGE:
        with put_back(path):
            damage(path)
            with pytest.raises(FileDamaged):
                publish()
            assert nothing_is_published(runner), damage.__name__


def interrupted(step: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, before: Callable[..., Any]) -> None:
    """Do ``step`` up to the first call of ``before``, a method."""

    def stop(*arguments: Any) -> None:
        raise Interrupted

    owner = Run if before == Run.finish_step else ParquetSink
    with monkeypatch.context() as patch:
        patch.setattr(owner, before.__name__, stop)
        with pytest.raises(Interrupted):
            step()


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        pytest.param(which, damage, marks=[] if number % 2 == which else pytest.mark.long)
        for number, damage in enumerate(DAMAGE)
        for which in (0, 1)
    ],
)
def test_what_an_interrupted_try_left_damaged_is_read_again(
    damage: Callable[[Path], None],
    which: int,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for earlier in runner.steps()[:which]:
        earlier()
    interrupted(runner.steps()[which], monkeypatch, Run.finish_step)
    damage(files_of(runner, ["chunks/*/*.parquet", "delta/segment-*.parquet"][which])[-1])
    runner.all()
    assert "is done again" in capsys.readouterr().out
    assert runner.published() == runner.expected()


@pytest.mark.parametrize("placed", [False, True])
def test_files_of_a_commit_are_checked_by_the_try_that_completes_it(
    placed: bool, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    *before, publish = runner.steps()
    for earlier in before:
        earlier()
    interrupted(publish, monkeypatch, ParquetSink._announce if placed else ParquetSink.publish)
    pattern = "../../shop.orders/snapshot=*/*.parquet" if placed else "staged/*/*.parquet"
    path = files_of(runner, pattern)[-1]
    for damage in DAMAGE:
        with put_back(path):
            damage(path)
            for _ in range(2):
                with pytest.raises(FileDamaged):
                    publish()
                assert not list(Path(runner.target.path()).glob("*/_latest.json")), damage.__name__
    publish()
    assert runner.published() == runner.expected()


RECORDS = [
    "ledger/000001-*.json",
    "ledger/000002-*.json",
    "ledger/000003-*.json",
    "chunks/files-*.json",
    "delta/net-*.json",
]


TEXTS = ["", "[]", "{}", "null", "{", '{"plan": 1}']


def test_a_damaged_record_ends_the_run_with_one_clear_error(runner: Runner) -> None:
    *before, publish = runner.steps()
    for earlier in before:
        earlier()
    for record, text in product(RECORDS, TEXTS):
        (path,) = Path(runner.run.path()).glob(record)
        with put_back(path):
            path.write_text(text)
            with pytest.raises(ManifestError) as failed:
                publish()
            assert path.name in str(failed.value) or "format None" in str(failed.value), (record, text)
            assert nothing_is_published(runner), (record, text)
    publish()
    assert runner.published() == runner.expected()


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_record_of_an_interrupted_try_is_named(
    which: int, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for earlier in runner.steps()[:which]:
        earlier()
    interrupted(runner.steps()[which], monkeypatch, Run.finish_step)
    for record, text in product((("chunks/plan", "chunks/done/*"), ("delta/done/*",))[which], TEXTS[:4]):
        path = sorted(Path(runner.run.path()).glob(f"{record}.json"))[0]
        with put_back(path):
            path.write_text(text)
            with pytest.raises(ManifestError, match=path.name.replace(".", r"\.")):
                runner.steps()[which]()
    runner.all()
    assert runner.published() == runner.expected()


def test_no_entry_follows_an_entry_that_was_altered(runner: Runner) -> None:
    """An entry names the entry before it by digest: also an alteration of good shape is noticed."""
    *before, publish = runner.steps()
    for earlier in before:
        earlier()
    (path,) = Path(runner.run.path()).glob("ledger/000002-*.json")
    record = json.loads(path.read_text())
    record["entry"]["result"]["log_end"] = str(LENGTH - 1)
    path.write_text(json.dumps(record))
    with pytest.raises(ManifestError, match="extract_delta of this run is not finished"):
        publish()


def test_the_manifest_of_another_run_is_refused(runner: Runner, tmp_path: Path) -> None:
    """As it is found where two runs share one folder, or a folder was copied."""
    other = runner.run.parent().folder("20260101T000000Z-11111111")
    shutil.copytree(runner.run.path(), other.path())
    with pytest.raises(ManifestError, match="the run 20260101T000000Z-00000000, not to 2026"):
        Run.load(other)
    shutil.copytree(tmp_path / "lake", tmp_path / "elsewhere")
    moved = runner.target.parent().folder("elsewhere", "_runs", "20260101T000000Z-00000000")
    with pytest.raises(ManifestError, match=r"the folder file://.*/lake/_runs, not to file://.*/elsewhere/_runs"):
        Run.load(moved)


def test_a_run_that_began_on_another_kind_of_source_is_refused(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistorySource, "kind", "postgres")
    with pytest.raises(ConfigurationError, match="began on a mysql source"):
        runner.steps()[0]()
