"""The acts of operators have an order, stay in the run's folder, and are refused if they cannot have an effect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.control import main
from airflow_provider_cdc.core.control.acts import Act, Acts, act_on, check_not_stopped, wanted
from airflow_provider_cdc.core.options.run import LimitOptions, StepOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, RunStopped
from tests.runs import commit, manifest_of

LIMITS = LimitOptions(max_reads=4, governor={"threads_running": 40.0})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(manifest_of(Storage(tmp_path.as_uri()), options=StepOptions(limits=LIMITS)))


def act(verb: str, **more: Any) -> Act:
    return Act(verb, "ann", "2026-01-01T00:00:00+00:00", "m", **more)


def test_the_last_act_counts_and_limits_stay_until_they_are_changed() -> None:
    acts = [
        act("limit", max_reads=2, governor={"threads_running": 10.0}),
        act("pause"),
        act("limit", max_rows_per_second=500),
    ]
    state = wanted(LIMITS, acts, {"m"})
    assert (state.max_reads, state.max_rows_per_second, state.thresholds) == (2, 500, {"threads_running": 10.0})
    assert state.pause == acts[1]
    assert wanted(LIMITS, [*acts, act("resume")], {"m"}).pause is None


def test_a_stop_counts_for_good_but_not_for_a_run_that_began_anew() -> None:
    acts = [act("pause"), act("stop"), act("resume"), act("limit", max_reads=1)]
    assert wanted(LIMITS, acts, {"m"}).stop == acts[1]
    # The run has read a table again since, which gave it another manifest.
    assert wanted(LIMITS, acts, {"m", "later"}).stop == acts[1]
    anew = wanted(LIMITS, acts, {"another manifest"})
    assert (anew.stop, anew.pause, anew.max_reads) == (None, None, 1)


def test_acts_of_two_operators_at_once_are_both_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Storage.create_json
    others = [act("limit", max_reads=1)]

    def slower(self: Storage, name: str, data: Any, settle: float | None = None) -> bool:
        while others:
            original(self, name, {**vars(others.pop()), "token": "other"})
        return original(self, name, data, settle)

    monkeypatch.setattr(Storage, "create_json", slower)
    act_on(run.folder, "pause", "ben")
    assert [(one.verb, one.by) for one in Acts(run.folder).read()] == [("limit", "ann"), ("pause", "ben")]


@pytest.mark.parametrize(
    ("verb", "limits", "why"),
    [
        ("wait", {}, "is not an act"),
        ("resume", {}, "is not paused"),
        ("limit", {}, "no limit is given"),
        ("limit", {"max_reads": -1}, "negative"),
        ("limit", {"governor": {"threads_running": float("nan")}}, "not a number"),
        ("limit", {"governor": {"threads_running": "40"}}, "not a number"),
        ("limit", {"governor": {"threads_running": None}}, "not a number"),
        ("limit", {"governor": {"threads_running": True}}, "not a number"),
        ("limit", {"governor": {"threads_running": 10**400}}, "not a number"),
        ("limit", {"governor": "threads_running"}, "not a number"),
        ("limit", {"max_reads": True}, "not a number"),
        ("limit", {"max_rows_per_second": 10**400}, "not a number"),
        ("limit", {"governor": {"SELECT 1": 1.0}}, "does not watch 'SELECT 1'"),
        ("pause", {"max_reads": 1}, "the act is pause"),
    ],
)
def test_an_act_without_effect_is_refused(run: Run, verb: str, limits: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        act_on(run.folder, verb, "ann", **limits)
    assert not run.folder.exists("control")


def test_bytes_that_are_not_text_do_not_make_a_run_uncontrollable(run: Run) -> None:
    act_on(run.folder, "pause", "ann\udcff", "\udcff")
    assert [str(one) for one in Acts(run.folder).read()] == ["ann?: ?"]


def test_a_user_without_a_name_may_act(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert main(["pause", run.folder.uri]) == 0
    assert [one.by for one in Acts(run.folder).read()] == [f"user {2**31 - 2}"]


def test_a_run_that_has_its_commit_is_not_stopped(run: Run) -> None:
    act_on(run.folder, "stop", "ann")
    with pytest.raises(RunStopped):
        check_not_stopped(run.folder)
    commit(run)
    check_not_stopped(run.folder)
    with pytest.raises(ConfigurationError, match="made its commit"):
        act_on(run.folder, "pause", "ann")


def test_the_command_acts_and_shows(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    uri = run.folder.uri
    assert main(["pause", uri, "--reason", "before the sale", "--by", "ann"]) == 0
    assert main(["limit", uri, "--max-reads", "1", "--threshold", "threads_running=7", "--by", "ann"]) == 0
    assert main(["resume", f"{uri}-elsewhere"]) == 1
    told = capsys.readouterr()
    assert "there is no manifest" in told.err
    assert main(["show", uri]) == 0
    shown = capsys.readouterr().out
    assert "pause, by ann: before the sale" in shown
    assert "limit (max_reads = 1, threads_running: 7), by ann" in shown


def test_chunks_are_as_small_as_a_limit_of_rows_needs() -> None:
    assert LimitOptions().chunk_rows_within(100_000) == 100_000
    assert LimitOptions(max_rows_per_second=1000).chunk_rows_within(100_000) == 2000
    assert LimitOptions(max_rows_per_second=1).chunk_rows_within(100_000) == 100
    assert LimitOptions(max_rows_per_second=1000).chunk_rows_within(30) == 30
