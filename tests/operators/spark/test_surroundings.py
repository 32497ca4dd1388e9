"""A real spark-submit in surroundings that Spark does not expect: locales without UTF-8, and a user without a name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.airflow_home import ROOT
from harness.cache import cache_directory
from tests.seeds import some

UID = 54321
SHOP = {"conn_type": "cdc_mysql", "host": "127.0.0.1", "login": "cdc", "password": "x"}


def execute(
    lake: str,
    home: Path,
    *,
    schema: str = "shop",
    before: Sequence[str] = (),
    **variables: str,
) -> str:
    """Execute the step of `probe_task` in a process of its own, and return what it prints."""
    own: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))},
        "AIRFLOW_CONN_SHOP": json.dumps(SHOP),
        "AIRFLOW_CONN_SPARK": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **variables,
    }
    command = [*before, sys.executable, str(Path(__file__).with_name("probe_task.py")), lake, schema]
    done = subprocess.run(
        command, env=own, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=600
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, text[-6000:]
    return text


def probed(lake: Path) -> dict[str, Any]:
    (record,) = lake.glob("_runs/*/probe.json")
    result: dict[str, Any] = json.loads(record.read_text())
    return result


@pytest.mark.slow
@pytest.mark.parametrize("locale", some("C", "POSIX", "xx_YY.UTF-8", plain=1))
@pytest.mark.parametrize("form", ["path", "URI"])
def test_no_locale_changes_a_target_or_the_name_of_a_table(locale: str, form: str, tmp_path: Path) -> None:
    lake = tmp_path / "größe 数据.lake"
    execute(str(lake) if form == "path" else lake.as_uri(), tmp_path, schema="größe", LC_ALL=locale)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lake"] == [lake.name]
    assert json.loads((lake / "größe.orders.json").read_text()) == {"name": "größe.orders"}
    assert all(argument.isascii() for argument in probed(lake)["argv"])


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _readable(base: Path) -> list[str]:
    """The start of a command to which the home of root, which nobody else may enter, appears with only the checkout and
    the cache in it. The machine itself does not change."""
    home, stage = Path.home(), base / "home"
    shown = [place for place in (ROOT, cache_directory(), Path(sys.base_prefix)) if place.is_relative_to(home)]
    mounts = [f"mount --bind {place} {stage / place.relative_to(home)}" for place in shown]
    for place in shown:
        (stage / place.relative_to(home)).mkdir(parents=True)
    stage.mkdir(exist_ok=True)
    script = [*mounts, f"mount --rbind {stage} {home}", 'exec "$@"']
    return ["unshare", "--mount", "sh", "-c", " && ".join(script), "sh"]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
@pytest.mark.parametrize("home", ["/", None])
def test_a_user_without_an_entry_in_passwd_can_run_steps(home: str | None, base: Path) -> None:
    """As in OpenShift, which gives each namespace a number as its user."""
    lake, own, temporary = (base / name for name in ("lake", "own", "tmp"))
    for folder in (lake, own, temporary):
        folder.mkdir()
        os.chown(folder, UID, UID)
    before = [*_readable(base), "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    before += ["env", "-u", "NUMBA_CACHE_DIR", *(["-u", "HOME"] if home is None else [f"HOME={home}"])]
    said = execute(str(lake), own, before=before, TMPDIR=str(temporary))
    assert (lake / "shop.orders.json").exists()
    assert probed(lake)["user"] == f"uid{UID}"
    assert str(ROOT) not in probed(lake)["package"], "executors use the package that was sent to them"
    assert "Exception" not in said
    assert not [path for path in own.rglob("*") if path.name in ("?", "~")]
    assert not list(temporary.iterdir()), "the scratch folder is gone"


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="only root can rename the machine")
def test_a_local_spark_starts_on_a_machine_whose_name_does_not_resolve(tmp_path: Path) -> None:
    before = ["unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec env -u SPARK_LOCAL_IP "$@"', "sh"]
    execute(str(tmp_path / "lake"), tmp_path, before=before)
    assert probed(tmp_path / "lake")["user"]


@pytest.mark.slow
def test_a_server_of_spark_connect_in_the_environment_is_ignored(tmp_path: Path) -> None:
    execute(str(tmp_path / "lake"), tmp_path, SPARK_REMOTE="sc://127.0.0.1:1")
    assert probed(tmp_path / "lake")["user"]
