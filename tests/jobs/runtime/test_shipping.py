"""The zip file has what executors run and nothing of Airflow, and is unpacked once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_cdc.jobs.runtime.driver import package_zip

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import airflow_provider_cdc.jobs.consolidate.step, airflow_provider_cdc.sources.mysql.log.segments
import pyarrow
from airflow_provider_cdc.core.tables import row_bytes
assert row_bytes.encode(pyarrow.record_batch({"k": [True]}), ["k"]).to_pylist() == [bytes([1, 1])]
print(airflow_provider_cdc.__version__, airflow_provider_cdc.core.__file__)
assert not [name for name in sys.modules if name.split(".")[0] == "airflow"]
"""


def load(archive: Path, cache: Path) -> str:
    """From where a process without our path has the package that the zip holds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(archive)],
        env={"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=archive.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


def test_equal_packages_are_equal_zips(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    archive = package_zip(tmp_path)
    assert archive.read_bytes() == package_zip(tmp_path / "again").read_bytes()
    assert archive.suffix == ".zip"


def test_the_airflow_side_stays_at_home(tmp_path: Path) -> None:
    names = zipfile.ZipFile(package_zip(tmp_path)).namelist()
    folders = {name.split("/")[1] for name in names}
    assert folders == {"__init__.py", "compat.py", "counted.py", "errors.py", "core", "sources", "sinks", "jobs"}
    assert all(name.startswith("airflow_provider_cdc/") and name.endswith(".py") for name in names)


@pytest.mark.long
def test_processes_share_one_unpacked_package(tmp_path: Path) -> None:
    archive = package_zip(tmp_path)
    elsewhere = tmp_path / "another application"
    elsewhere.mkdir()
    copy = Path(archive.replace(elsewhere / archive.name))
    package_zip(tmp_path)
    places = {load(archive, tmp_path / "cache"), load(copy, tmp_path / "cache")}
    (place,) = places
    assert place.startswith(str(tmp_path / "cache"))
    assert [path.name for path in (tmp_path / "cache/airflow-provider-cdc/shipped").iterdir()] == [
        Path(place).parents[1].name
    ]


@pytest.mark.long
def test_without_a_cache_the_package_is_unpacked_beside_the_zip(tmp_path: Path) -> None:
    archive = package_zip(tmp_path)
    nowhere = tmp_path / "file"
    nowhere.touch()
    assert load(archive, nowhere).startswith(f"{archive}.unpacked/")


@pytest.mark.slow
def test_without_any_place_to_unpack_to_the_zip_itself_is_the_package(tmp_path: Path) -> None:
    archive = package_zip(tmp_path)
    nowhere = tmp_path / "file"
    nowhere.touch()
    Path(f"{archive}.unpacked").touch()
    assert load(archive, nowhere).startswith(f"{archive}/")
