"""Online schema changes by tools while a run works. Only the altered table is read again, and all are exact.

The oracle is MySQL itself: its own tools replay exactly the transactions of the moved position, the tool's included, on
a second server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.percona_toolkit import OnlineSchemaChange, find_online_schema_change
from harness.pipeline import Pipeline, settings_of
from tests.consistency.acting import DURING, WHEN, act_during, run_through
from tests.consistency.mysql import history
from tests.consistency.mysql.online_tools import GhOst, Percona
from tests.consistency.mysql.replayed import Replayed
from tests.consistency.writing import Writing
from tests.seeds import SOAK_SEED

BEGUN, AT_ONCE = "begun before the run", "begun in it"
"""The tool has made its own table before the run begins, or it does everything in the run."""

PAUSE = 0.1
"""Of each writer, in seconds: the oracle replays all that is written."""
MOMENTS = (WHEN[1], DURING[0], DURING[2])

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def percona() -> OnlineSchemaChange:
    try:
        return find_online_schema_change()
    except HarnessError as error:
        pytest.skip(f"there is no pt-online-schema-change: {error}")


def _check(
    begin: Callable[[], Percona | GhOst],
    table: str,
    begun: str,
    during: str,
    mysql: MysqlServer,
    mysql_oracle: MysqlServer,
    spark: SparkSession,
    schema: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = SOAK_SEED or 1
    replayed = Replayed(mysql, mysql_oracle, schema, seed, 200)
    tables = [f"{schema}.{subject.name}" for subject in history.SUBJECTS]
    run = Pipeline(spark, settings_of(mysql), folder.as_uri(), tables, chunk_rows=60)
    with Writing(history.write(mysql.connect, schema, PAUSE), seed, 4) as writers:
        writers.wait_for_more(50)
        tool = begin() if begun == BEGUN else None
        initial = run.record()

        def act() -> None:
            writers.wait_for_more(20)
            (tool or begin()).finish()
            writers.wait_for_more(20)

        writers.wait_for_more(30)
        if during == WHEN[1]:
            run_through(run, during, act)
        else:
            act_during(run, during, act, monkeypatch)
            run.snapshot()
            if during == DURING[2]:
                act()
            writers.wait_for_more(10)
            run.extract_delta()
    found = run.consolidate()
    replayed.check(found["published"], found["position"])
    manifest = Run.load(run.run).manifest
    if during == DURING[2]:
        # The reads had ended before the tool swapped the tables.
        assert found["position"] == initial
        assert not manifest.restarts
        return
    assert found["position"] != initial
    assert [list(restart.tables) for restart in manifest.restarts] == [[f"{schema}.{table}"]]
    assert [entry.table.name.name for entry in manifest.tables if not entry.basis] == [table]


@pytest.mark.parametrize(
    ("table", "alter"),
    [
        ("integers", "ADD COLUMN extra INT NOT NULL DEFAULT 7"),
        ("names", "ENGINE=InnoDB"),
        ("parted", "MODIFY note LONGTEXT NULL"),
    ],
)
@pytest.mark.parametrize("begun", [BEGUN, AT_ONCE])
@pytest.mark.parametrize("during", MOMENTS)
def test_pt_online_schema_change(
    during: str,
    begun: str,
    table: str,
    alter: str,
    percona: OnlineSchemaChange,
    mysql: MysqlServer,
    mysql_oracle: MysqlServer,
    spark: SparkSession,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin() -> Percona:
        return Percona(percona, mysql, f"{schema}.{table}", alter, tmp_path)

    lake = tmp_path / "lake"
    _check(begin, table, begun, during, mysql, mysql_oracle, spark, schema, lake, monkeypatch)


@pytest.mark.parametrize("alter", ["ADD COLUMN extra INT NOT NULL DEFAULT 7", "ENGINE=InnoDB"])
@pytest.mark.parametrize("begun", [BEGUN, AT_ONCE])
@pytest.mark.parametrize("during", MOMENTS)
def test_the_cut_over_of_gh_ost(
    during: str,
    begun: str,
    alter: str,
    mysql: MysqlServer,
    mysql_oracle: MysqlServer,
    spark: SparkSession,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin() -> GhOst:
        return GhOst(mysql, f"{schema}.integers", alter, ["id", "big", "text", "amount", "at"])

    lake = tmp_path / "lake"
    _check(begin, "integers", begun, during, mysql, mysql_oracle, spark, schema, lake, monkeypatch)
