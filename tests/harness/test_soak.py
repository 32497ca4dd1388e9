"""What `dev/soak` draws, and that it reports a failure with the command that repeats it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from harness.airflow_home import ROOT
from harness.soak import __main__ as soak
from harness.soak import kinds
from harness.soak.kinds import FIXED, KINDS, Kind
from tests.seeds import in_part

TEST = """
import os

def test_seed():
    assert os.environ["CDC_SOAK_SEED"] != "17"
"""


def test_every_kind_names_tests_that_exist() -> None:
    for name, kind in KINDS.items():
        for argument in kind.arguments:
            file, _, test = argument.removeprefix("--ignore=").partition("::")
            if file.startswith("tests"):
                assert (ROOT / file).exists(), (name, file)
                assert not test or f"def {test}(" in (ROOT / file).read_text(), (name, argument)
    assert {name for name, _ in FIXED} <= set(KINDS)


def test_a_seed_draws_the_same_pieces_of_every_kind() -> None:
    pieces = [*itertools.islice(soak.drawn(5, None), 500)]
    assert pieces == [*itertools.islice(soak.drawn(5, None), 500)]
    assert {name for name, _ in pieces} == set(KINDS)
    assert {name for name, _ in itertools.islice(soak.drawn(5, "ddl"), 9)} == {"ddl"}


def test_the_parts_of_ci_contain_each_piece_and_each_slow_test_once() -> None:
    assert sorted(piece for part in range(1, 5) for piece in soak.fixed_part(f"{part}/4")) == sorted(FIXED)
    tests = [f"tests/test_x.py::test_y[{number}]" for number in range(1000)]
    parts = [[test for test in tests if in_part(test, f"{part}/4")] for part in range(1, 5)]
    assert sorted(test for part in parts for test in part) == sorted(tests)
    assert min(map(len, parts)) > 200


@pytest.mark.slow
def test_a_failure_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "test_seed.py").write_text(TEST)
    kind = Kind("a test that fails with one seed", ("-c", "/dev/null", str(tmp_path / "test_seed.py")))
    monkeypatch.setattr(soak, "KINDS", {"one": kind})
    monkeypatch.setattr(kinds, "KINDS", {"one": kind})
    for seed, status in (("17", 1), ("18", 0)):
        monkeypatch.setattr(sys, "argv", ["dev/soak", "--only", "one", "--seed", seed])
        with pytest.raises(SystemExit) as end:
            soak.main()
        assert end.value.code == status
        told = capsys.readouterr().out
        assert ("soak: FAILED: dev/soak --only one --seed 17" in told) == bool(status), told
        assert f"soak: pieces of work: 1, failed: {status}" in told
