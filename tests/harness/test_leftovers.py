"""The cache does not grow without limit, and nothing that is in use is removed from it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from harness import leftovers
from harness.airflow_home import ROOT
from harness.throw_away import remove_abandoned

DAY = 24 * 3600


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    return cache


def venv(cache: Path, name: str, checkout: Path | None, age: float = 2 * DAY) -> Path:
    """An environment that was used ``age`` seconds ago; without ``checkout`` it does not name its checkout."""
    made = cache / f"venv-{name}"
    (made / "bin").mkdir(parents=True)
    (made / "bin/python").touch()
    if checkout is not None:
        (made / ".checkout").write_text(f"{checkout}\n")
        os.utime(made / ".checkout", (time.time() - age, time.time() - age))
    return made


def checkout(directory: Path) -> Path:
    directory.mkdir()
    (directory / "pyproject.toml").touch()
    return directory


def removed(cache: Path) -> str:
    said: list[str] = []
    leftovers.remove_all(cache, said.append)
    return "\n".join(said)


def test_environments_of_checkouts_that_are_gone_are_removed(cache: Path, tmp_path: Path) -> None:
    venv(cache, "gone", tmp_path / "gone")
    (cache / ".venv-half-removed").mkdir()
    stay = [
        venv(cache, "there", checkout(tmp_path / "there")),
        venv(cache, "unknown", None),
        # A container may share the cache, and see another file system.
        venv(cache, "elsewhere", tmp_path / "elsewhere", age=DAY / 2),
    ]
    said = removed(cache)
    assert "venv-gone" in said
    assert str(tmp_path / "gone") in said
    assert sorted(path for path in cache.iterdir() if path.is_dir()) == sorted(stay)
    assert removed(cache) == ""


def test_environments_of_pins_long_past_are_removed(cache: Path, tmp_path: Path) -> None:
    there = checkout(tmp_path / "there")
    old, new = venv(cache, "old", there, age=31 * DAY), venv(cache, "new", there, age=29 * DAY)
    assert "not used for 30 days" in removed(cache)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("lock", ["venv-gone/.checkout", "venv-gone.lock"], ids=["used", "built"])
def test_an_environment_that_somebody_holds_stays(lock: str, cache: Path, tmp_path: Path) -> None:
    gone = venv(cache, "gone", tmp_path / "gone")
    with (cache / lock).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert removed(cache) == ""
        assert (gone / "bin/python").exists()
    assert "venv-gone" in removed(cache)


def test_each_command_holds_its_environment_as_long_as_it_runs(cache: Path, tmp_path: Path) -> None:
    gone = venv(cache, "gone", tmp_path / "gone")
    (gone / "bin/python").unlink()
    (gone / "bin/python").symlink_to("/bin/true")
    script = f'source dev/_env.sh; CACHE={cache} VENV={gone}; enter_environment; exec sh -c "echo in; read end"'
    with subprocess.Popen(
        ["bash", "-euc", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "in\n"
        # Its use counts from now on; but even if its clock were wrong:
        os.utime(gone / ".checkout", (0, 0))
        assert removed(cache) == ""
        command.communicate("\n")
    assert "venv-gone" in removed(cache)


@pytest.mark.parametrize(("used_today", "kept"), [(10, leftovers.KERNELS_KEPT), (18, 18)])
def test_only_kernels_that_were_used_lately_stay(used_today: int, kept: int, cache: Path) -> None:
    for age in range(leftovers.KERNELS_KEPT + 4):
        folder = cache / "numba" / f"{age:02}"
        folder.mkdir(parents=True)
        seconds = time.time() - (age * 3600 if age < used_today else age * DAY)
        os.utime(folder, (seconds, seconds))
    assert f"{leftovers.KERNELS_KEPT + 4 - kept} sets" in removed(cache)
    assert sorted(path.name for path in (cache / "numba").iterdir()) == [f"{age:02}" for age in range(kept)]


def test_modules_of_folders_that_are_gone_are_removed(cache: Path, tmp_path: Path) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    for folder in (there, gone):
        compiled = cache / "pycache" / folder.relative_to("/") / "package"
        compiled.mkdir(parents=True)
        (compiled / "module.pyc").touch()
    (there / "package").mkdir()
    assert str(gone) in removed(cache)
    assert [str(path.relative_to(cache / "pycache")) for path in cache.rglob("*.pyc")] == [
        str((there / "package/module.pyc").relative_to("/"))
    ]


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_kept(tmp_path: Path) -> None:
    abandoned, used, fresh, foreign = (tmp_path / name for name in ("cdc-x-1", "cdc-x-2", "cdc-x-3", "other"))
    for folder in (abandoned, used, fresh, foreign):
        (folder / "data").mkdir(parents=True)
        if folder != fresh:
            os.utime(folder, (time.time() - DAY, time.time() - DAY))
    holder = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        remove_abandoned(tmp_path, "cdc-x-")
    finally:
        os.close(holder)
    assert sorted(tmp_path.iterdir()) == [used, fresh, foreign]
