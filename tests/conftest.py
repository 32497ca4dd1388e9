"""Real servers and a Spark session, shared by all tests and started when the first one asks."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from harness.airflow_home import ROOT, AirflowHome
from harness.cache import cache_directory
from harness.dag_runner import DagRunner
from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from harness.s3_server import s3_server
from harness.spark_classes import jvm_options
from tests.seeds import SOAK_SEED, examples, in_part
from tests.servers import throw_away_mysql, throw_away_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No deadlines: the time that an example takes depends more on the machine than on the code.
settings.register_profile(
    "cdc",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=examples(100),
    # The same examples in every run, so that a failure is due to the change under test. dev/soak draws new examples.
    derandomize=SOAK_SEED is None,
    database=None,
)
settings.load_profile("cdc")

# Importing Airflow writes into its home folder, so use a separate one and leave the developer's own folder alone.
os.environ["AIRFLOW_HOME"] = str(cache_directory() / "tests-airflow")

# For every JVM that a test starts, unless the environment sets other options.
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {jvm_options()}".strip())


# Opt-in: watched kernels take seconds to compile, and each process compiles its own.
if os.environ.get("CDC_WATCH_KERNELS"):
    from harness.watched_kernels import KernelWatch

    WATCH: KernelWatch | None = KernelWatch()
else:
    WATCH = None

AIRFLOW = "tests/dags/"

LOG_FILE_BYTES = 1 << 18

SUMMARY_SECONDS = 300
"""The duration of a run from which its slowest files are listed."""

LONGEST_FIRST = [ROOT / "tests" / name for name in ("dags", "consistency", "contract", "jobs", "sinks")]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Several processes take one file after the other. Files that start last must be short, so that all end together.
    items.sort(key=lambda item: next((i for i, at in enumerate(LONGEST_FIRST) if at in item.path.parents), 99))
    # .ci/run runs only this part of the slow tests.
    if part := os.environ.get("CDC_SLOW_PART"):
        others = [item for item in items if item.get_closest_marker("slow") and not in_part(item.nodeid, part)]
        items[0].config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    # dev/soak runs only this number of the selected tests. Its seed draws them.
    if SOAK_SEED is not None and (count := int(os.environ.get("CDC_SOAK_TESTS", "0"))):
        drawn = random.Random(SOAK_SEED).sample(sorted(item.nodeid for item in items), min(count, len(items)))
        items[:] = [item for item in items if item.nodeid in drawn]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude the modules and the tests, a million permanent objects, from all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


class OneAirflow(LoadFileScheduling):
    """Gives each process one file after the other, and all DAG runs to one process, because Airflow starts slowly."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return AIRFLOW if file.startswith(AIRFLOW) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneAirflow | None:
    return OneAirflow(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    done = yield
    if WATCH is not None and (seen := WATCH.seen()):
        pytest.fail(f"kernels did what LLVM takes for impossible: {', '.join(seen)}")
    return done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took longest, to show where the minutes of a whole run go."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    if (total := sum(seconds.values())) >= SUMMARY_SECONDS:
        terminalreporter.section(f"seconds of the slowest files, of {total:,.0f} s of all processes together")
        for file, spent in sorted(seconds.items(), key=lambda item: -item[1])[:40]:
            terminalreporter.line(f"{spent:7.0f}  {file}")


class PostgresFactory(Protocol):
    def __call__(self, options: Mapping[str, str] | None = None, version: int | None = None) -> PostgresServer: ...


MysqlFactory = Callable[[Mapping[str, str | None]], MysqlServer]


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of this process and its children. Tests must leave nothing in it."""
    # pytest's own folder is elsewhere, and keeps the files of failed tests.
    tmp_path_factory.getbasetemp()
    folder = Path(tempfile.mkdtemp(prefix="cdc-tests-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        yield folder
    left = sorted(str(path.relative_to(folder)) for path in folder.iterdir())
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"tests left files in the temporary folder: {left}"


@pytest.fixture(scope="session")
def mysql() -> Iterator[MysqlServer]:
    """The server that tests share. Tests that change its global settings use `mysql_factory`."""
    with throw_away_mysql() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_oracle() -> Iterator[MysqlServer]:
    """A second server, for replaying, with its own log and GTIDs."""
    with throw_away_mysql() as server:
        yield server


@pytest.fixture(autouse=True)
def short_log(request: pytest.FixtureRequest) -> None:
    """Begin a new file of the shared server's binary log if earlier tests have written much.

    A run reads the file in which it begins from its start, so a long file makes all later tests slow.
    """
    if "mysql" in request.fixturenames:
        server: MysqlServer = request.getfixturevalue("mysql")
        if int(server.query("SHOW BINARY LOG STATUS")[0][1]) > LOG_FILE_BYTES:
            server.query("FLUSH BINARY LOGS")


@pytest.fixture
def mysql_factory() -> Iterator[MysqlFactory]:
    """Starts a server with the given options; all of them end with the test."""
    with ExitStack() as servers:
        yield lambda options: servers.enter_context(throw_away_mysql(options))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL that tests share, of the version in ``$CDC_TEST_POSTGRES``, else the one on PATH."""
    with throw_away_postgres() as server:
        yield server


@pytest.fixture
def postgres_factory() -> Iterator[PostgresFactory]:
    """Starts a server with the given options and of the given major version; all of them end with the test."""
    with ExitStack() as servers:
        yield lambda options=None, version=None: servers.enter_context(throw_away_postgres(options, version))


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The name of a fresh database on `postgres`, dropped after the test; the test must leave no slot behind."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    # Cheaper than writing the copy to the log.
    postgres.query(f"CREATE DATABASE {name} STRATEGY file_copy")
    yield name
    slots = postgres.drop_database(name)
    assert not slots, f"replication slots were left: {slots}"


@pytest.fixture
def schema(mysql: MysqlServer) -> Iterator[str]:
    """The name of a fresh database on `mysql`, dropped after the test."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    mysql.query(f"CREATE DATABASE {name}")
    yield name
    mysql.query(f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of an S3 with the bucket ``lake``; ``harness.s3_server`` has its credentials."""
    with tempfile.TemporaryDirectory(prefix="cdc-s3-") as directory, s3_server(Path(directory)) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores, whose workers run this Python."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="cdc-spark-") as scratch, pytest.MonkeyPatch.context() as patch:
        # A JVM ignores TMPDIR.
        patch.setenv("SPARK_SUBMIT_OPTS", f"{os.environ['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={scratch}")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("airflow-provider-cdc tests")
            .config("spark.driver.memory", "1g")
            .config("spark.local.dir", scratch)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        patch.undo()
        yield session
        # py4j closes its connections when this process ends, and there is no log to write to by then.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        context = session.sparkContext
        gateway = context._gateway
        session.stop()
        # End the JVM now. Otherwise it would remove its temporary files only when this process ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@pytest.fixture(scope="session")
def dag_runner() -> Iterator[DagRunner]:
    """A process that runs the shipped DAGs, and those of the tests, in its own Airflow."""
    with tempfile.TemporaryDirectory(prefix="cdc-airflow-") as directory:
        home = AirflowHome(Path(directory), {})
        # Spark's event log has all properties and environment settings of Spark. The options are not in a file, because
        # its folder would precede Spark's jars, and the archive of classes is valid only for these jars.
        events = home.home / "events"
        events.mkdir()
        log = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
        options = [f"-Dspark.eventLog.{name}={value}" for name, value in log.items()]
        home.environment["SPARK_SUBMIT_OPTS"] = " ".join([os.environ["SPARK_SUBMIT_OPTS"], *options])
        home.prepare()
        own = [
            ROOT / "tests/dags" / f"{name}.py"
            for name in ("announced", "clean_up", "nightly_copy", "every_shop", "iceberg_shop", "merged_shops")
        ]
        with DagRunner(home, [*ROOT.glob("dags/*.py"), *own]) as runner:
            yield runner
