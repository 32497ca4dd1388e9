"""A Spark app ends with one clear message, a record of it, and an exit code that shows whether a retry may help."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.errors import ConfigurationError, LoginRefused, SchemaChanged, SourceUnavailable, naming
from airflow_provider_cdc.jobs.runtime import app
from airflow_provider_cdc.jobs.runtime.driver import check_pyspark, settings_from_environment, to_environment
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history
from tests.runs import snapshot_result

SETTINGS = ConnectionSettings("mysql", "db.example", 3306, "reader", "s3cret", tls={"mode": "required"})


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has the name of each session that was stopped."""
    names: list[str] = []
    monkeypatch.setattr(app, "defer_session", lambda name: SimpleNamespace(stop=lambda: names.append(name)))
    for name, value in to_environment(SETTINGS).items():
        monkeypatch.setenv(name, value)
    return names


def test_a_step_says_at_the_end_how_long_it_took_and_stops_spark(
    stopped: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(spark: Any, run: Any, settings: ConnectionSettings) -> SnapshotResult:
        assert settings == SETTINGS
        return snapshot_result(5, seconds=1.5)

    app.main("snapshot", job, ["--run-uri", tmp_path.as_uri()])
    assert capsys.readouterr().out == "snapshot: done in 2 s\n"
    assert stopped == ["cdc snapshot"]


LATER = ["--then=extract_delta", "--then=consolidate"]


@pytest.mark.parametrize(
    ("within", "failing", "done"),
    [
        ("--within=60", "", ["extract_delta", "consolidate"]),
        ("--within=60", "consolidate", ["extract_delta"]),
        # What failed is not passed over.
        ("--within=60", "extract_delta", []),
        # The application is too old.
        ("--within=-1", "", []),
    ],
)
def test_an_application_goes_on_with_the_steps_after_its_own_and_their_failure_is_not_its_own(
    within: str,
    failing: str,
    done: list[str],
    stopped: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    began: list[str] = []

    def work(task_id: str) -> Any:
        assert not stopped, "they need the session"
        began.append(task_id)
        if task_id == failing:
            raise SchemaChanged("altered", where="s.t", hint="again")
        return snapshot_result(1)

    for task_id in ("extract_delta", "consolidate"):
        monkeypatch.setattr(
            f"airflow_provider_cdc.jobs.{task_id}.step.{task_id}", lambda *given, own=task_id: work(own)
        )
    app.main("snapshot", lambda *given: snapshot_result(5), ["--run-uri", tmp_path.as_uri(), *LATER, within])
    assert began == [*done, *([failing] if failing else [])]
    assert sorted(path.stem for path in tmp_path.glob("done/*")) == sorted(done)
    assert not (tmp_path / "errors").exists()
    assert (" will execute this step: SchemaChanged: [CDC-1101] s.t: altered" in capsys.readouterr().out) == bool(
        failing
    )
    assert stopped == ["cdc snapshot"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SchemaChanged("altered", where="s.t", hint="again"), 2),
        (SourceUnavailable("gone"), 1),
        # The retry takes the present password.
        (LoginRefused("wrong password"), 1),
    ],
)
def test_an_error_is_printed_recorded_and_told_by_the_exit_code(
    error: Exception, code: int, stopped: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(spark: Any, run: Any, settings: ConnectionSettings) -> SnapshotResult:
        raise error

    with pytest.raises(SystemExit) as ended:
        app.main("snapshot", job, ["--run-uri", tmp_path.as_uri()])
    assert ended.value.code == code
    printed = capsys.readouterr()
    assert printed.out == f"snapshot failed: {type(error).__name__}: {error}\n"
    assert "Traceback" not in printed.err
    record = json.loads((tmp_path / "errors/snapshot.json").read_text())
    assert record == {"type": type(error).__name__, "message": str(error), "terminal": code == 2}
    assert stopped


def _caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


def _while_handling(other: Exception, error: Exception) -> Exception:
    error.__context__ = other
    return error


NO_FILES = OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IndexError("list index out of range"), 2),
        (KeyError("x"), 2),
        (AssertionError("never"), 2),
        (OSError(28, "No space left on device"), 1),
        (ConnectionResetError("reset"), 1),
        (MemoryError(), 1),
        (ImportError("no module named x"), 2),
        (_caused(ImportError("source not available through get_data()"), NO_FILES), 1),
        (_while_handling(_while_handling(NO_FILES, RuntimeError()), UnboundLocalError("sockfile")), 1),
        (_while_handling(FileNotFoundError("no such record"), KeyError("x")), 2),
        (PySparkRuntimeError("Answer from Java side is empty"), 1),
    ],
)
def test_an_error_that_nobody_foresaw_names_the_step_and_the_table_and_is_retried_only_if_it_may_pass(
    error: Exception, code: int, stopped: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(spark: Any, run: Any, settings: ConnectionSettings) -> SnapshotResult:
        with naming("shop.orders"), naming("part 3"):
            raise error

    with pytest.raises(SystemExit) as ended:
        app.main("snapshot", job, ["--run-uri", tmp_path.as_uri()])
    assert ended.value.code == code
    record = json.loads((tmp_path / "errors/snapshot.json").read_text())
    assert record["terminal"] == (code == 2)
    assert f"] snapshot, shop.orders, part 3: {type(error).__name__}: {error}" in record["message"]
    assert "in job" in capsys.readouterr().err, "the log needs the traceback for the investigation"
    assert stopped


def test_a_table_whose_chunks_cannot_be_planned_is_named(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stopped: list[str]
) -> None:
    def fail(self: HistorySource, table: Any, rows: int) -> None:
        raise ZeroDivisionError(str(table.name))

    monkeypatch.setattr(HistorySource, "plan_chunks", fail)
    runner = here(HistorySource(random_history(random.Random(5), 40), 5), 15)
    with pytest.raises(SystemExit) as ended:
        app.main("snapshot", lambda *arguments: runner.steps()[0](), ["--run-uri", runner.run.uri])
    assert ended.value.code == 2
    assert (
        "snapshot failed: TerminalError: [CDC-1001] snapshot, shop.orders: ZeroDivisionError" in capsys.readouterr().out
    )


@pytest.mark.parametrize("text", [None, "", "{", '{"kind": "mysql"}', '"s3cret"', '{"password": "s3cret", "x": 1}'])
def test_without_settings_nothing_begins_and_no_secret_shows(
    text: str | None,
    stopped: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("CDC_SOURCE")
    if text is not None:
        monkeypatch.setenv("CDC_SOURCE", text)
    with pytest.raises(SystemExit) as ended:
        app.main("snapshot", lambda *arguments: snapshot_result(), ["--run-uri", tmp_path.as_uri()])
    assert ended.value.code == 2
    printed = capsys.readouterr().out
    assert "CDC_SOURCE" in printed
    assert "s3cret" not in printed + (tmp_path / "errors/snapshot.json").read_text()
    assert not stopped


def test_a_folder_that_is_none_is_one_clear_error(stopped: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main("snapshot", lambda *arguments: snapshot_result(), ["--run-uri", "nowhere"])
    assert ended.value.code == 2
    assert "'nowhere' cannot be used as a folder" in capsys.readouterr().out


def test_settings_survive_the_environment() -> None:
    other = replace(SETTINGS, port=3307)
    for settings in (SETTINGS, replace(SETTINGS, replicas=(SETTINGS, other)), replace(SETTINGS, log_server=other)):
        assert settings_from_environment(to_environment(settings)) == settings


def test_two_versions_of_pyspark_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "4.2.0", "pyspark-client": "4.1.0"}
    monkeypatch.setattr("airflow_provider_cdc.jobs.runtime.driver.version", versions.__getitem__)
    with pytest.raises(ConfigurationError, match=r"pyspark 4\.2\.0 and pyspark-client 4\.1\.0"):
        check_pyspark()
