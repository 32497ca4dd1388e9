"""Statements that PostgreSQL 19 added: REPACK during a run, between nights, and since a past position.

REPACK moves the rows of a table to another file, also CONCURRENTLY, and the log has none of it. The server of these
tests decodes its log on demand (``wal_level`` is ``replica``). The oracle is a full copy of the same rows, made while
nothing was written. (`UPDATE … FOR PORTION OF`, `MERGE PARTITIONS` and `SPLIT PARTITION` are not in this version.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import CdcError, PreflightError
from harness.pipeline import Pipeline, settings_of
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.consistency.comparing import assert_same_copies
from tests.consistency.postgres import test_ddl as ddl
from tests.consistency.postgres.nights import Nights
from tests.contract.databases import PostgresDatabase

NEWEST = max(one.major for one in installations())
pytestmark = pytest.mark.skipif(NEWEST < 19, reason="no PostgreSQL 19 here")

ON_DEMAND = {"wal_level": "replica"}
REPACKED = {
    "FULL": {
        "plain": "REPACK plain",
        "ordered": "REPACK ordered USING INDEX ordered_pkey",
        "parted": "REPACK parted_low",
    },
    # The server does not repack tables with REPLICA IDENTITY FULL concurrently.
    "DEFAULT": {"plain": "REPACK (CONCURRENTLY) plain", "parted": "REPACK (CONCURRENTLY) parted_low"},
}
"""The statements, by the replica identity and the table."""


class Repacked(Nights):
    """Nights of tables with a replica identity. The table ``stock`` is not repacked."""

    def __init__(self, identity: str, server: PostgresServer, spark: SparkSession, folder: Path) -> None:
        super().__init__(server, spark, folder)
        self.identity, self.statements = identity, REPACKED[identity]
        self.tables = ("stock", *self.statements)
        for table in self.tables:
            leaves = {"parted_low": "(MINVALUE) TO (100)", "parted_high": "(100) TO (MAXVALUE)"}
            if table == "parted":
                self.do(f"CREATE TABLE {table} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
                self.do(
                    *(f"CREATE TABLE {leaf} PARTITION OF parted FOR VALUES FROM {at}" for leaf, at in leaves.items())
                )
            else:
                self.do(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
            self.do(
                *(
                    f"ALTER TABLE {name} REPLICA IDENTITY {identity}"
                    for name in (table, *(leaves if table == "parted" else ()))
                ),
                f"INSERT INTO {table} SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 299) i",
            )

    def write(self, *, repacking: bool = True) -> None:
        for table in self.tables:
            self.do(
                f"UPDATE {table} SET note = 'changed' WHERE id % 5 = 0",
                *([self.statements[table]] if repacking and table in self.statements else []),
                f"UPDATE {table} SET id = id + 1000 WHERE id % 7 = 0",
                f"DELETE FROM {table} WHERE id % 11 = 0",
                f"INSERT INTO {table} SELECT i, 'new' FROM generate_series(300, 320) i ON CONFLICT DO NOTHING",
            )


@pytest.fixture(params=REPACKED)
def nights(
    request: pytest.FixtureRequest, postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> Repacked:
    return Repacked(request.param, postgres_factory(ON_DEMAND, NEWEST), spark, tmp_path)


def _copied(nights: Repacked, name: str) -> dict[str, str]:
    """A full copy of all tables as they are; nothing is written in the meantime."""
    run = Pipeline(nights.spark, settings_of(nights.server), (nights.folder / name).as_uri(), ["public.*"])
    run.record()
    found: dict[str, str] = run.finish()["published"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the reads", "after the reads"])
def test_during_a_run(nights: Repacked, when: str) -> None:
    before = _copied(nights, "before")
    run = nights.night("full")
    begun = run.record()
    if when == "before the reads":
        nights.write()
    run.snapshot()
    if when == "after the reads":
        nights.write()
    run.extract_delta()
    found = run.consolidate()
    # A table whose rows moved is read again, and then the run is exact at a later position.
    later = when == "before the reads"
    assert (found["position"] != begun) == (later or nights.identity == "DEFAULT")
    assert_same_copies(found["published"], _copied(nights, "after") if later else before, when)


@pytest.mark.slow
def test_between_nights(nights: Repacked) -> None:
    nights.first()
    for expected in (["stock"], nights.tables):
        nights.write(repacking=len(expected) == 1)
        run = nights.night("auto")
        run.record()
        rolled = {str(plan.table) for plan in run.plans if plan.base}
        assert rolled == {f"public.{name}" for name in expected}, [plan.reason for plan in run.plans]
        nights.check(run.finish()["published"])


@pytest.mark.slow
@pytest.mark.parametrize("nights", ["FULL"], indirect=True)
def test_since_a_past_position(nights: Repacked) -> None:
    nights.first()
    before = _copied(nights, "before")
    nights.do("SELECT pg_logical_emit_message(true, 'test', '')")
    point = str(nights.ask("SELECT pg_current_wal_flush_lsn()"))
    nights.write()
    with pytest.raises(PreflightError) as refused:
        nights.night("full", as_of=point).record()
    assert {problem.where for problem in refused.value.problems} == {f"public.{name}" for name in nights.statements}
    for refresh in ("full", "changes"):
        run = nights.night(refresh, tables=["public.stock"], as_of=point)
        run.record()
        found = run.finish()
        assert Lsn.parse(found["position"]) == Lsn.parse(point)
        assert_same_copies(found["published"], {"public.stock": before["public.stock"]}, refresh)


@pytest.fixture
def shop(postgres_factory: PostgresFactory) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase(postgres_factory(ON_DEMAND, NEWEST), "postgres")
    with made.account():
        made.execute(*ddl.SETUP)
        yield made


@ddl.WHEN
@pytest.mark.parametrize("statement", ["REPACK orders", "REPACK parts_low", "REPACK journal_rest"])
def test_while_the_application_writes(shop: PostgresDatabase, when: str, statement: str) -> None:
    with pytest.raises(CdcError, match="rewritten"):
        ddl.copied(shop, when, ddl.acting(shop, statement))


@pytest.mark.slow
@ddl.WHEN
def test_of_a_table_that_is_not_copied(shop: PostgresDatabase, when: str) -> None:
    """Its transient table and its own slot are not in the log of the run."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other SELECT generate_series(1, 1000)")
    ddl.copied(shop, when, ddl.acting(shop, "REPACK (CONCURRENTLY) other; REPACK other"))
