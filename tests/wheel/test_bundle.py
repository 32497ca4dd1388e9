"""The archive of ``python -m airflow_provider_cdc.bundle``: made for another Python than this one, and used where a
Python has no packages."""

from __future__ import annotations

import ast
import os
import sys
import tarfile
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_environment
from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.own_environment import interpreter, run
from harness.pipeline import Pipeline, published_counts, settings_of
from tests.jobs.cluster import Cluster, cluster, environment_without_us

ROOT = Path(__file__).parents[2]


def bundle(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "airflow_provider_cdc.bundle", *arguments)


def archive_in(folder: Path, *arguments: str) -> tuple[Path, list[str]]:
    """Make an archive, and return its path and the Spark properties that the command prints."""
    conf = ast.literal_eval(bundle("--to", folder, *arguments).partition("conf = ")[2])
    uri = conf["spark.archives"].removesuffix("#environment")
    return Path(unquote(urlsplit(uri).path)), [f"{name}={value}" for name, value in conf.items()]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_copy_runs_on_a_python_whose_packages_are_only_those_of_the_archive(
    mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    mysql.query(f"INSERT INTO {schema}.orders VALUES {','.join(f'({n}, {n % 7})' for n in range(500))}")
    run(interpreter("3.12"), "-m", "venv", "--without-pip", tmp_path / "bare")
    python = tmp_path / "bare/bin/python"
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    archive, conf = archive_in(tmp_path / "archives", "--python", version)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "environment", filter="data")
    pipeline = Pipeline(None, settings_of(mysql), (tmp_path / "lake").as_uri(), [f"{schema}.*"], chunk_rows=60)
    pipeline.record()
    expected = Counter(mysql.query(f"SELECT * FROM {schema}.orders"))
    mysql.query(f"UPDATE {schema}.orders SET note = 'later' WHERE id < 100")

    os.environ.update(spark_environment())
    bare = environment_without_us(tmp_path / "cache", PYSPARK_PYTHON=str(python))
    with cluster(tmp_path, bare) as started:
        # A driver on a managed platform has the archive's packages in this way, too.
        driver = {**started.environment, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(tmp_path / "environment")}
        done = Cluster(started.master, driver).submit(
            ROOT / "spark_apps/snapshot.py",
            *("--run-uri", pipeline.run.uri, "--then=extract_delta", "--then=consolidate", "--within=1200"),
            py_files=package_zip(tmp_path),
            more=to_environment(settings_of(mysql)),
            conf=conf,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    copy = Run.load(pipeline.run).result_of(ConsolidateResult).published[f"{schema}.orders"]
    assert published_counts(copy)[1] == expected


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_archive_for_another_processor_and_its_requirements_have_the_versions_that_are_installed_here(
    tmp_path: Path,
) -> None:
    asked = ("--python", "3.13", "--arch", "aarch64", "--extras", "postgres,iceberg")
    archive, _ = archive_in(tmp_path, *asked)
    assert archive.name.endswith("-cp313-aarch64.tar.gz")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    modules = [name for name in names if ".cpython-" in name]
    assert modules
    assert all(name.endswith(".cpython-313-aarch64-linux-gnu.so") for name in modules)
    installed = {
        name.split("/")[0].removesuffix(".dist-info") for name in names if name.endswith(".dist-info/METADATA")
    }
    wanted = {line.replace("-", "_").replace("==", "-") for line in bundle("--requirements", *asked).split()}
    assert {name.lower().replace(".", "_") for name in installed} >= {name.replace(".", "_") for name in wanted}
    for name in ("apache_airflow", "pyspark", "airflow_provider_cdc"):
        assert not [one for one in installed if one.startswith(name)]


def test_an_extra_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"has no extra mysql\n.*its extras are .*gcs, google, iceberg"):
        bundle("--requirements", "--extras", "postgres,mysql")
