"""Tables that stay read when the run moves: harmless statements on them, unlogged statements, and statements that
only the log shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.kinds import parse_position
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.jobs.certificate import build
from airflow_provider_cdc.jobs.log.log import RunLog
from airflow_provider_cdc.jobs.restart import later_position, move
from airflow_provider_cdc.jobs.roll_forward import merge, plan
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.conftest import MysqlFactory
from tests.jobs.spool.spooled_run import make_tables
from tests.jobs.spool.test_restarts import RestartedRun

pytestmark = pytest.mark.slow


def unlogged(server: MysqlServer, statement: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(statement)


def refused_next_night(run: RestartedRun) -> Mapping[str, str]:
    """The tables that the next run would read in full, each with the reason."""
    manifest = Run.load(run.pipeline.run).manifest
    source, tables = MysqlSource(settings_of(run.server)), [entry.table for entry in manifest.tables]
    position = parse_position("mysql", manifest.initial_position)
    refused = source.refusals_since(manifest.identity, position, tables, None, manifest.options)
    return {name.name: why for name, why in refused.items()}


@pytest.mark.parametrize("spools", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_next_run_goes_on_from_tables_that_had_harmless_statements_before_the_move(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spools: bool
) -> None:
    """The server has removed the log of these statements by then. Unlogged statements are found before the
    move and after it."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def last() -> None:
        if spools:
            run.same_source = run.reading_source
            run.spool()

    def act() -> None:
        server.query("OPTIMIZE TABLE shop.visits")
        server.query("ALTER TABLE shop.visits ADD INDEX (note(9))")
        server.query("ALTER TABLE shop.events ADD INDEX (a)")
        unlogged(server, "ALTER TABLE shop.events FORCE")
        run.alter()

    run.acts = {1: [run.change] * 3 + [last, act, last]}
    run.pipeline.snapshot()
    assert set(run.kept) == {"visits"}
    assert "sql_log_bin=0" in run.present.restarts[0].tables["shop.events"]
    server.query("FLUSH BINARY LOGS")
    run.finish()
    assert refused_next_night(run) == {}
    unlogged(server, "TRUNCATE TABLE shop.visits")
    assert list(refused_next_night(run)) == ["visits"]


def test_an_unlogged_statement_after_the_new_position_is_found_by_the_next_run(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OPTIMIZE TABLE before the move does not explain it. If the statement comes before the move is complete, the
    table is read again."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def act() -> None:
        server.query("OPTIMIZE TABLE shop.visits")
        run.alter()

    def right_before(step: Step) -> None:
        # A check of the tables would make the statement explain nothing any more.
        server.query("OPTIMIZE TABLE shop.events")

    def right_after(*arguments: Any) -> InitialPoint:
        point = run.record_point(*arguments)
        if len(run.points) == 1:
            unlogged(server, "TRUNCATE TABLE shop.events")
        return point

    monkeypatch.setattr(move, "end_spool", right_before)
    monkeypatch.setattr(later_position, "record_point", right_after)
    run.acts = {1: [run.change] * 14 + [act], 2: [lambda: unlogged(server, "TRUNCATE TABLE shop.visits")]}
    run.finish()
    assert set(run.kept) == {"visits"}
    assert list(refused_next_night(run)) == ["visits"]


def test_a_statement_that_was_explained_explains_no_later_change(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE TABLE rebuilds all tables, and then each of them is truncated without an entry in the log: between two
    checks, right before the new position is fixed, and between two moves."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def first() -> None:
        server.query("OPTIMIZE TABLE shop.orders, shop.events, shop.visits")
        tables = [entry.table for entry in run.present.tables]
        run.reading_source.check_tables(tables)
        unlogged(server, "TRUNCATE TABLE shop.orders")
        with pytest.raises(SchemaChanged, match="TABLE_ID"):
            run.reading_source.check_tables(tables)
        record_point = run.record_point

        def right_before(*arguments: Any) -> InitialPoint:
            monkeypatch.setattr(later_position, "record_point", record_point)
            unlogged(server, "TRUNCATE TABLE shop.events")
            return record_point(*arguments)

        monkeypatch.setattr(later_position, "record_point", right_before)

    def second() -> None:
        run.change()
        unlogged(server, "TRUNCATE TABLE shop.visits")
        run.alter()

    run.acts = {1: [run.change] * 14 + [first], 2: [second]}
    run.finish()
    assert [set(restart.tables) for restart in run.present.restarts] == [
        {"shop.orders", "shop.events"},
        {"shop.visits"},
    ]


@pytest.mark.long
def test_a_statement_that_was_explained_explains_no_change_before_the_last_piece(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second move, OPTIMIZE TABLE is before the later position. After the table was compared, and before the
    last piece is read, the table is truncated without an entry in the log."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)
    up_to = RunLog.up_to

    def spool() -> None:
        run.same_source = run.reading_source
        run.spool()

    def second() -> None:
        spool()
        server.query("OPTIMIZE TABLE shop.visits")
        monkeypatch.setattr(RunLog, "up_to", truncated)
        run.alter()

    def truncated(*arguments: Any) -> Any:
        monkeypatch.setattr(RunLog, "up_to", up_to)
        unlogged(server, "TRUNCATE TABLE shop.visits")
        return up_to(*arguments)

    run.acts = {1: [spool] * 3 + [run.alter], 2: [second]}
    run.pipeline.snapshot()
    assert [set(restart.tables) for restart in run.present.restarts] == [
        {"shop.orders"},
        {"shop.orders", "shop.visits"},
    ]
    run.finish()


def test_one_move_covers_all_statements_that_only_the_log_shows(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def act() -> None:
        for statement in (
            "TRUNCATE TABLE shop.visits",
            "CREATE TABLE shop.copy LIKE shop.orders",
            "RENAME TABLE shop.orders TO shop.old, shop.copy TO shop.orders",
            "DROP TABLE shop.old",
        ):
            server.query(statement)
        run.change()

    run.acts = {1: [run.change] * 14 + [act]}
    run.pipeline.snapshot()
    assert not run.points
    run.finish()
    assert len(run.points) == 1
    (restart,) = run.present.restarts
    assert {name: text.partition(" on ")[0] for name, text in restart.tables.items()} == {
        "shop.orders": "RENAME TABLE",
        "shop.visits": "TRUNCATE TABLE",
    }
    assert set(run.kept) == {"events"}


@pytest.mark.long
def test_one_move_covers_copies_that_are_rolled_forward(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the new table of the second night is read, and is altered. The statements on the other tables come after
    the position that the run had until then, and before the position to which it moves."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)
    run.finish()
    server.query("CREATE TABLE shop.late (id INT PRIMARY KEY)")
    server.query("INSERT INTO shop.late VALUES (1), (2)")
    options: dict[str, Any] = {"run_id": "20260102T000000Z-00000000", "refresh": "auto"}
    for module in (plan, merge, build):
        monkeypatch.setattr(module, "run_tasks", run._run_tasks)
    spark = run.pipeline._spark
    run.pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["shop.*"], **options)
    run.pipeline.record()
    run.names = ("orders", "events", "visits", "late")
    assert [entry.table.name.name for entry in run.present.tables if entry.is_read] == ["late"]

    def act() -> None:
        run.change()
        for name in ("orders", "visits", "late"):
            server.query(f"TRUNCATE TABLE shop.{name}")
        run.change()

    run.acts = {1: [act]}
    run.finish()
    assert len(run.points) == 1
    (restart,) = run.present.restarts
    assert set(restart.tables) == {"shop.orders", "shop.visits", "shop.late"}
    assert [entry.table.name.name for entry in run.present.tables if entry.base] == ["events"]
