"""A Spark that reads Iceberg tables, for tests. It has an environment of its own, because the package with Iceberg's
library is for Spark 3.5."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.java import java_home
from harness.messages import say
from harness.own_environment import make_environment, run

# Version 1.0.3 of this package lacks classes that its jars need.
REQUIREMENTS = ("pyspark==3.5.7", "snowpark-connect-deps-iceberg==1.0.2")
JARS = "lib/python*/site-packages/snowpark_connect_deps_iceberg/jars/iceberg-spark-runtime-3.5_2.12-*.jar"
PROGRAM = Path(__file__).parents[2] / "tests/sinks/iceberg/spark_program.py"
SQLITE = ("libxerial-sqlite-jdbc-java", "libxerial-sqlite-jdbc-jni")
OF_THE_CHECKOUT = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_SUBMIT_OPTS")


@dataclass(frozen=True)
class SparkReader:
    """A Spark with Iceberg's library and a driver for catalogs in SQLite."""

    python: Path
    folder: Path
    settings: Mapping[str, str]

    def sql(self, queries: Sequence[str], catalog: Mapping[str, str]) -> list[tuple[list[tuple[Any, ...]], list[str]]]:
        """Return, for each query, the rows and the filters that are wrong: see the program.

        :param catalog: Spark's properties for the catalog.
        """
        request, answer = self.folder / "request.json", self.folder / "answer.pickle"
        request.write_text(json.dumps({"settings": {**self.settings, **catalog}, "queries": queries}))
        environment = {name: value for name, value in os.environ.items() if name not in OF_THE_CHECKOUT}
        environment |= {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
        run(self.python, PROGRAM, request, answer, env=environment)
        answers: list[tuple[list[tuple[Any, ...]], list[str]]] = pickle.loads(answer.read_bytes())
        return answers


@contextmanager
def spark_reader() -> Iterator[SparkReader]:
    """Make the environment, and remove it at the end."""
    driver = _sqlite_driver()
    (native,) = driver.glob("usr/lib/*/jni")
    with tempfile.TemporaryDirectory(prefix="cdc-spark-iceberg-") as directory:
        folder = Path(directory)
        python = make_environment(folder, *REQUIREMENTS)
        (iceberg,) = python.parents[1].glob(JARS)
        jars = [str(iceberg), str(driver / "usr/share/java/xerial-sqlite-jdbc.jar")]
        settings = {
            "spark.jars": ",".join(jars),
            "spark.driver.extraClassPath": ":".join(jars),
            "spark.driver.extraJavaOptions": f"-Dorg.sqlite.lib.path={native} -Djava.io.tmpdir={folder}",
            "spark.local.dir": str(folder),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        yield SparkReader(python, folder, settings)


def _sqlite_driver() -> Path:
    root = cache_directory() / "sqlite-jdbc" / "root"
    with locked("sqlite-jdbc"):
        if not root.exists():
            say("SQLite: fetching a JDBC driver into the cache, without root")
            with building(root) as work:
                apt.unpack(
                    [SQLITE],
                    work,
                    suites=apt.own_suites(),
                    with_dependencies=False,
                    hint="run this test on Debian or Ubuntu",
                )
    return root
