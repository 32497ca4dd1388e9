"""Keys with generated columns. Before PostgreSQL 18, the log has no generated columns, so it has such a key in part
or not at all. These tables are read as a whole in the view, and all others by their keys.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.consistency.postgres.nights import Nights
from tests.consistency.postgres.servers import EVERY

TABLES = {
    "made": "note text, n int NOT NULL, id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY",
    "partly": "place int, n int, note text, id int GENERATED ALWAYS AS (n % 100) STORED, PRIMARY KEY (place, id)",
    "indexed": "n int PRIMARY KEY, note text, id int GENERATED ALWAYS AS (n * 3) STORED NOT NULL UNIQUE",
    "plain": "n int PRIMARY KEY, note text, id int GENERATED ALWAYS AS (n * 3) STORED",
}
COMPUTED = {f"public.{name}" for name in TABLES if name != "plain"}
GENERATED_COLUMNS_ARE_LOGGED = 18


@pytest.fixture(params=EVERY)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def server(version: int, postgres_factory: PostgresFactory) -> PostgresServer:
    made = postgres_factory(None, version)
    for name, columns in TABLES.items():
        made.query(f"CREATE TABLE {name} ({columns})")
    made.query("ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key")
    for name in TABLES:
        place = ("place, ", "i % 7, ") if name == "partly" else ("", "")
        made.query(f"INSERT INTO {name} ({place[0]}n, note) SELECT {place[1]}i, 'x' FROM generate_series(1, 90) i")
    return made


def write(server: PostgresServer) -> None:
    """Change rows and their keys. The server refuses none of it because of what a run has it publish."""
    for name in TABLES:
        place = ("place, ", "1, ") if name == "partly" else ("", "")
        server.query(
            f"""
            UPDATE {name} SET note = note || 'y' WHERE n % 5 = 0; DELETE FROM {name} WHERE n % 7 = 1;
            UPDATE {name} SET n = n + 1003 WHERE n % 7 = 2 AND n < 1000;
            INSERT INTO {name} ({place[0]}n, note) VALUES ({place[1]}0, 'new') ON CONFLICT DO NOTHING
            """
        )


def rows(server: PostgresServer) -> dict[str, Counter[Any]]:
    return {f"public.{name}": Counter(server.query(f"SELECT * FROM {name}")) for name in TABLES}


@pytest.mark.long
@pytest.mark.parametrize("identity", ["", "FULL"])
def test_such_tables_are_exact(
    identity: str,
    version: int,
    server: PostgresServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if identity:
        for name in TABLES:
            server.query(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["public.*"], chunk_rows=20)
    run.record()
    ways = {str(plan.table): (plan.consistency, plan.at_upper) for plan in run.plans}
    if version >= GENERATED_COLUMNS_ARE_LOGGED:
        assert set(ways.values()) == {("watermark", False) if identity else ("again", True)}
    else:
        # With FULL its primary key is the one that counts, and not the index.
        computed = COMPUTED - {"public.indexed"} if identity else COMPUTED
        assert ways == {name: ("exported" if name in computed else "again", True) for name in ways}
        reasons = {str(plan.table): plan.reason for plan in run.plans}
        assert all("keys of its changed rows" in reasons[name] for name in computed)
    # Where rows are read again, what counts is what is there at the view.
    expected = rows(server)
    write(server)
    touched = reread_passes._touched

    def noted(step: Any, tail: Any, log_end: LogEnd | None = None) -> Any:
        if log_end is not None:
            expected.update(rows(server))
            write(server)
        return touched(step, tail, log_end)

    monkeypatch.setattr(reread_passes, "_touched", noted)
    found = run.finish()["published"]
    assert {name: Counter(published(uri)[1]) for name, uri in found.items()} == expected


def test_going_back_is_refused_where_the_log_lacks_them(version: int, server: PostgresServer) -> None:
    for name in TABLES:
        server.query(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    source, asked = PostgresSource(settings_of(server)), TableOptions("watermark")
    if version >= GENERATED_COLUMNS_ARE_LOGGED:
        assert {plan.consistency for plan in source.preflight(["public.*"], asked)} == {"watermark"}
        return
    with pytest.raises(PreflightError) as refusal:
        source.preflight(["public.*"], asked)
    problems = refusal.value.problems
    assert {problem.where for problem in problems} == {f"public.{name}.id" for name in TABLES}
    assert all("only since PostgreSQL 18" in problem.what and "again" in problem.hint for problem in problems)


@pytest.mark.long
def test_nights_of_such_tables(version: int, server: PostgresServer, spark: SparkSession, tmp_path: Path) -> None:
    nights = Nights(server, spark, tmp_path)
    nights.first()
    for _ in range(2):
        write(server)
        run = nights.night("auto")
        run.record()
        rolled = {str(plan.table) for plan in run.plans if plan.base}
        assert rolled == {f"public.{name}" for name in TABLES} - (
            set() if version >= GENERATED_COLUMNS_ARE_LOGGED else COMPUTED
        )
        nights.check(run.finish()["published"])
