"""On a real server, plain Python replays published changes onto the previous copy, which gives the next copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.jobs.runtime import retry
from airflow_provider_cdc.lake import open_dataset, read_changes, read_latest
from harness.pipeline import Pipeline, settings_of
from tests.conftest import PostgresFactory
from tests.consistency.postgres import history
from tests.consistency.postgres.nights import FULL, Nights
from tests.consistency.postgres.servers import ENDS
from tests.consistency.replaying import replayed, rows_of
from tests.consistency.writing import Writing
from tests.seeds import chain_length, seeds

NIGHTS = chain_length(3)


def copy_of(target: str, table: str) -> pa.Table:
    copy = read_latest(target, table)
    assert copy is not None
    return open_dataset(copy).to_table()


def changes_of(target: str, table: str, since: str = "") -> pa.Table:
    found = read_changes(target, table, since)
    assert found.files
    return open_dataset(found).to_table()


@pytest.mark.timeout(120 * (NIGHTS + 1))
@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("seed", seeds())
def test_replayed_onto_a_copy_they_give_the_next(
    seed: int, version: int, postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    server = postgres_factory({"max_connections": "60"}, version)
    chance = random.Random(f"{version} {seed}")
    with server.connect() as connection:
        connection.execute("CREATE SCHEMA shop")
        history.create(connection, "shop", seed, chance.choice([20, 200, 400]))
    subjects = {f"shop.{subject.name}": subject for subject in history.SUBJECTS}
    target = tmp_path.as_uri()
    before: dict[str, pa.Table] = {}
    first: dict[str, pa.Table] = {}
    positions = []
    for night in range(NIGHTS + 1):
        vacuums = Writing(history.vacuum(server.connect, "shop"), seed, 1)
        with (
            Writing(history.write(server.connect, "shop", 0.01), seed + 100 * night, chance.choice([3, 4])) as writers,
            vacuums,
        ):
            writers.wait_for_more(chance.randrange(1, 100))
            run = Pipeline(
                spark,
                settings_of(server),
                target,
                [*subjects],
                run_id=f"202601{night + 1:02}T000000Z-{seed:08}",
                standing_slot="night",
                refresh="auto",
                changes=True,
            )
            positions.append(run.record())
            assert all(plan.base for plan in run.plans) or not night, [plan.reason for plan in run.plans]
            run.snapshot()
            run.extract_delta()
        run.consolidate()
        for name, subject in subjects.items():
            place = f"seed {seed}, night {night}, {name}"
            copy = copy_of(target, name)
            if night:
                found = read_changes(target, name)
                assert (found.from_position, found.position) == (positions[-2], positions[-1]), place
                changes = changes_of(target, name)
                assert replayed(rows_of(before[name]), subject.key, changes) == rows_of(copy), place
                _check_points(changes, positions[-2:])
                whole = changes_of(target, name, positions[0])
                assert replayed(rows_of(first[name]), subject.key, whole) == rows_of(copy), place
                assert whole["order"].to_pylist() == list(range(1, whole.num_rows + 1)), place
                _check_points(whole, [positions[0], positions[-1]])
            before[name] = copy
            first.setdefault(name, copy)


def _check_points(changes: pa.Table, window: Sequence[str]) -> None:
    start, end = map(Lsn.parse, window)
    points = [Lsn.parse(position) for position in changes["position"].to_pylist()]
    assert points == sorted(points)
    assert all(start <= point < end for point in points)


@pytest.fixture
def nights(postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path) -> Nights:
    return Nights(postgres_factory({"track_commit_timestamp": "on"}, ENDS[-1]), spark, tmp_path)


def lake(nights: Nights) -> str:
    return (nights.folder / "lake").as_uri()


def publish(nights: Nights, refresh: str = "auto", **more: Any) -> Pipeline:
    run = nights.night(refresh, **{"changes": True, **more})
    run.record()
    run.finish()
    return run


def told(nights: Nights, table: str) -> list[tuple[Any, ...]]:
    """The operation, and the rows as tuples, of each change of the last night."""
    changes = changes_of(lake(nights), f"public.{table}").to_pylist()
    return [
        (one["operation"], *(None if one[name] is None else tuple(one[name].values()) for name in ("before", "after")))
        for one in changes
    ]


@pytest.mark.slow
def test_every_change_is_told_in_the_order_of_the_commits_with_its_time(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v text, xid text)", FULL.format("stock"))
    nights.do("CREATE TABLE notes (v text, xid text)", FULL.format("notes"))
    xid, large = "pg_current_xact_id()::text", "x" * 40_000
    nights.do(
        f"INSERT INTO stock VALUES (1, '{large}', {xid}), (2, 'b', {xid})", "INSERT INTO notes VALUES ('a'), ('a')"
    )
    publish(nights)
    with nights.server.connect() as slow, nights.server.connect() as prepared:
        slow.execute("BEGIN")
        slow.execute(f"INSERT INTO stock VALUES (3, 'slow', {xid})")
        prepared.execute("BEGIN")
        prepared.execute(f"INSERT INTO stock VALUES (4, 'prepared', {xid})")
        prepared.execute("PREPARE TRANSACTION 'p'")
        # A value that is stored out of line and not changed is not in the log again.
        nights.do(f"UPDATE stock SET xid = {xid} WHERE id = 1", f"UPDATE stock SET v = v, xid = {xid} WHERE id = 2")
        slow.execute("SAVEPOINT here")
        slow.execute("DELETE FROM stock")
        slow.execute("ROLLBACK TO SAVEPOINT here")
        slow.execute("COMMIT")
        prepared.execute("COMMIT PREPARED 'p'")
    nights.do(f"UPDATE stock SET id = 5, xid = {xid} WHERE id = 3", "DELETE FROM stock WHERE id = 4")
    nights.do("DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes)", "INSERT INTO notes VALUES ('b')")
    publish(nights)
    changes = [(what, before and before[:2], after and after[:2]) for what, before, after in told(nights, "stock")]
    assert changes == [
        ("update", (1, large), (1, large)),
        ("update", (2, "b"), (2, "b")),
        ("insert", None, (3, "slow")),
        ("insert", None, (4, "prepared")),
        ("update", (3, "slow"), (5, "slow")),
        ("delete", (4, "prepared"), None),
    ]
    assert told(nights, "notes") == [("delete", ("a", None), None), ("insert", None, ("b", None))]
    for one in changes_of(lake(nights), "public.stock").to_pylist()[:5]:
        asked = "SELECT pg_xact_commit_timestamp(%s::text::xid)"
        ((when,),) = nights.server.query(asked, (one["after"]["xid"],))
        # The record of a prepared transaction's commit has its own time.
        assert one["commit_time"] == when, one


@pytest.mark.slow
def test_rows_that_move_between_partitions_are_told_as_they_are_logged(nights: Nights) -> None:
    nights.do(
        "CREATE TABLE tree (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF tree FOR VALUES FROM (0) TO (50)",
        # Its columns come in another order.
        "CREATE TABLE high (v text, id int NOT NULL)",
        "ALTER TABLE tree ATTACH PARTITION high FOR VALUES FROM (50) TO (100)",
        *(FULL.format(name) for name in ("tree", "low", "high")),
        "INSERT INTO tree VALUES (1, 'a'), (60, 'b')",
    )
    publish(nights, tables=["public.tree"])
    nights.do("UPDATE tree SET id = 70 WHERE id = 1", "UPDATE tree SET v = 'c' WHERE id = 60")
    publish(nights, tables=["public.tree"])
    assert told(nights, "tree") == [
        ("delete", (1, "a"), None),
        ("insert", None, (70, "a")),
        ("update", (60, "b"), (60, "c")),
    ]


NO_COMMENT = """
CREATE SEQUENCE comments;
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
    IF pg_catalog.nextval('public.comments') <= {0} THEN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END IF;
END$$;
CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('COMMENT') EXECUTE FUNCTION refuse()
"""


@pytest.mark.slow
def test_a_copy_that_cannot_be_recorded_breaks_no_chain_of_changes(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"), "INSERT INTO stock VALUES (1, 1)")
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    # All tries fail, and then the first one alone.
    for refusals, budget, warned in ((99, 0.0, True), (1, 60.0, False)):
        monkeypatch.setattr(retry, "BUDGET_SECONDS", budget)
        run = nights.night("auto", changes=True)
        run.record()
        nights.do(NO_COMMENT.format(refusals))
        run.finish()
        said = capsys.readouterr().out
        assert ("WARNING: could not record this run's copies" in said) == warned
        assert nights.ask("SELECT nextval('comments')") > min(refusals, retry.FEWEST_TRIES)
        nights.do("DROP EVENT TRIGGER refuse", "DROP FUNCTION refuse", "DROP SEQUENCE comments")
        if warned:
            nights.do("UPDATE stock SET v = 2")
    assert told(nights, "stock") == [("update", (1, 1), (1, 2))]


@pytest.mark.slow
def test_what_cannot_be_told_whole_is_refused_before_any_work(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", "INSERT INTO stock VALUES (1, 1)")
    with pytest.raises(PreflightError, match=r"only the keys of the changed rows: public\.stock"):
        nights.night("auto", changes=True).preflight()
    nights.do(FULL.format("stock"))
    with pytest.raises(PreflightError, match="only with copies that are rolled forward"):
        nights.night("full", changes=True).preflight()
    publish(nights)
    nights.do("ALTER TABLE stock ADD n int")
    with pytest.raises(PreflightError, match=r"its changes since the last copy cannot be published: .*altered"):
        nights.night("auto", changes=True).preflight()
    publish(nights, changes=False)
    nights.do("INSERT INTO stock VALUES (3, 30, 300)")
    publish(nights)
    assert told(nights, "stock") == [("insert", None, (3, 30, 300))]
