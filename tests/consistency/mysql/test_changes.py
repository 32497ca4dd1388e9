"""On a real server, plain Python replays published changes onto the previous copy, which gives the next copy."""

from __future__ import annotations

import random
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ChangesMissing, PreflightError
from airflow_provider_cdc.lake import open_dataset, read_changes, read_cut, read_latest
from airflow_provider_cdc.sinks.iceberg.cut_table import Cut
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.consistency.mysql import history
from tests.consistency.mysql.test_roll_forward_nights import Nights
from tests.consistency.replaying import replayed, rows_of
from tests.consistency.writing import Writing
from tests.seeds import chain_length, seeds
from tests.sources.mysql.values import CASES, create_table
from tests.sources.mysql.values import rows_of as values_of

NIGHTS = chain_length(3)

COMMIT = re.compile(r"immediate_commit_timestamp=(\d+) .*?SET @@SESSION\.GTID_NEXT= '([^']+)'", re.DOTALL)


def copy_of(target: str, table: str, cut: Cut | None = None) -> pa.Table:
    if cut is not None:
        return cut[table].to_arrow()
    copy = read_latest(target, table)
    assert copy is not None
    return open_dataset(copy).to_table()


def changes_of(target: str, table: str, since: str = "", cut: Cut | None = None) -> pa.Table:
    found = read_changes(target, table, since, cut=cut)
    assert found.files
    return open_dataset(found).to_table()


def commits(server: MysqlServer, first_log: str) -> list[tuple[str, int]]:
    """All transactions of the log, in its order, with their commit times in microseconds, as MySQL's own tool
    prints them."""
    command = [*server.tool("mysqlbinlog"), "--no-defaults", "--read-from-remote-server", f"--host={server.host}"]
    command += [f"--port={server.port}", "--user=root", "--to-last-log", "--base64-output=decode-rows", first_log]
    told = subprocess.run(command, capture_output=True, check=True).stdout.decode(errors="replace")
    return [(gtid, int(when)) for when, gtid in COMMIT.findall(told) if gtid != "AUTOMATIC"]


def micros(when: datetime) -> int:
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.timeout(120 * (NIGHTS + 1))
@pytest.mark.parametrize("seed", seeds())
def test_replayed_onto_a_copy_they_give_the_next(
    seed: int, mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    lake_format = "iceberg" if seed % 2 else "parquet"
    mysql.query("FLUSH BINARY LOGS")
    first_log = mysql.query("SHOW BINARY LOG STATUS")[0][0]
    with mysql.connect() as connection:
        history.create(connection, schema, seed, rows=chance.choice([20, 200, 600]))
    names = [f"{schema}.{subject.name}" for subject in history.SUBJECTS]
    keys = {f"{schema}.{subject.name}": subject.key for subject in history.SUBJECTS}
    target = tmp_path.as_uri()
    before: dict[str, pa.Table] = {}
    first: dict[str, pa.Table] = {}
    positions = []
    for night in range(NIGHTS + 1):
        with Writing(
            history.write(mysql.connect, schema, pause=0.02), seed + 100 * night, chance.choice([3, 4])
        ) as writers:
            for _ in range(chance.randrange(5)):
                writers.wait_for_more(chance.randrange(1, 20))
                mysql.query("FLUSH BINARY LOGS")
            writers.wait_for_more(chance.randrange(1, 60))
            run = Pipeline(
                spark,
                settings_of(mysql),
                target,
                [f"{schema}.*"],
                run_id=f"202601{night + 1:02}T000000Z-{seed:08}",
                refresh="auto",
                changes=True,
                format=lake_format,
            )
            positions.append(run.record())
            assert all(plan.base for plan in run.plans) or not night, [plan.reason for plan in run.plans]
            run.snapshot()
            run.extract_delta()
        run.consolidate()
        logged = {gtid: (number, when) for number, (gtid, when) in enumerate(commits(mysql, first_log))}
        cut = read_cut(target) if lake_format == "iceberg" else None
        for name in names:
            place = f"seed {seed}, night {night}, {name}"
            copy = copy_of(target, name, cut)
            if night:
                found = read_changes(target, name, cut=cut)
                assert (found.from_position, found.position) == (positions[-2], positions[-1]), place
                changes = changes_of(target, name, cut=cut)
                assert replayed(rows_of(before[name]), keys[name], changes) == rows_of(copy), place
                _check_points(changes, logged, mysql, positions[-2:])
                whole = changes_of(target, name, positions[0], cut)
                assert replayed(rows_of(first[name]), keys[name], whole) == rows_of(copy), place
                assert whole["order"].to_pylist() == list(range(1, whole.num_rows + 1)), place
            before[name] = copy
            first.setdefault(name, copy)


def _check_points(
    changes: pa.Table, logged: dict[str, tuple[int, int]], server: MysqlServer, window: list[str]
) -> None:
    """Each change is of a transaction of the window, in the order of the log, and of its commit time."""
    points = list(zip(changes["position"].to_pylist(), changes["commit_time"].to_pylist(), strict=True))
    places = [logged[position][0] for position, _ in points]
    assert places == sorted(places)
    assert all(micros(when) == logged[position][1] for position, when in points)
    inside = "SELECT GTID_SUBSET(%s, %s), GTID_SUBSET(%s, %s)"
    with server.connect() as connection, connection.cursor() as cursor:
        for position in {position for position, _ in points}:
            cursor.execute(inside, (position, window[0], position, window[1]))
            assert cursor.fetchone() == (0, 1), position


@pytest.fixture
def nights(mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path) -> Nights:
    return Nights(mysql, spark, schema, tmp_path)


def lake(nights: Nights) -> str:
    return (nights.folder / "lake").as_uri()


def publish(nights: Nights, refresh: str = "auto", **more: Any) -> Pipeline:
    run = nights.night(refresh, **{"changes": True, **more})
    run.record()
    run.finish()
    return run


def told(nights: Nights, table: str) -> list[tuple[str, Any, Any]]:
    """The operation, and the rows as tuples, of each change of the last night."""
    changes = changes_of(lake(nights), f"{nights.schema}.{table}").to_pylist()
    return [
        (one["operation"], *(None if one[name] is None else tuple(one[name].values()) for name in ("before", "after")))
        for one in changes
    ]


@pytest.mark.slow
def test_every_change_is_told_also_those_that_leave_nothing(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, v INT)", "INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30)")
    run = publish(nights)
    assert run.found["consolidate"]["changes"] == {f"{nights.schema}.stock": None}
    nights.do(
        "INSERT INTO stock VALUES (4, 40)",
        "UPDATE stock SET v = 41 WHERE id = 4",
        "DELETE FROM stock WHERE id = 4",
        "UPDATE stock SET id = 5 WHERE id = 1",
        "REPLACE INTO stock VALUES (2, 21)",
        "UPDATE stock SET id = id + 10, v = v + 1 WHERE id IN (2, 3)",
    )
    with nights.mysql.connect(database=nights.schema) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO stock VALUES (7, 70)")
        cursor.execute("SAVEPOINT here")
        cursor.execute("INSERT INTO stock VALUES (8, 80)")
        cursor.execute("ROLLBACK TO SAVEPOINT here")
        cursor.execute("UPDATE stock SET v = 71 WHERE id = 7")
        cursor.execute("COMMIT")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO stock VALUES (9, 90)")
        cursor.execute("ROLLBACK")
    run = publish(nights)
    assert told(nights, "stock") == [
        ("insert", None, (4, 40)),
        ("update", (4, 40), (4, 41)),
        ("delete", (4, 41), None),
        ("update", (1, 10), (5, 10)),
        ("update", (2, 20), (2, 21)),
        ("update", (2, 21), (12, 22)),
        ("update", (3, 30), (13, 31)),
        ("insert", None, (7, 70)),
        ("update", (7, 70), (7, 71)),
    ]
    assert run.found["consolidate"]["changes"] == {f"{nights.schema}.stock": 9}


@pytest.mark.slow
@pytest.mark.parametrize("read_together", [False, True], indirect=True)
def test_prepared_transactions_are_told_where_they_are_committed(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, v INT)")
    nights.do("INSERT INTO stock VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)")
    publish(nights)

    def prepare(xid: str, *statements: str) -> None:
        ends = f"XA END '{xid}'", f"XA PREPARE '{xid}'"
        nights.do("SET xa_detach_on_prepare = ON", f"XA START '{xid}'", *statements, *ends)

    def update(row: int, value: int) -> str:
        return f"UPDATE stock SET v = {value} WHERE id = {row}"

    prepare("over the night", update(1, 1))
    prepare("given up", update(2, 2))
    nights.do("FLUSH BINARY LOGS")
    publish(nights)
    assert told(nights, "stock") == []
    prepare("in one file", update(3, 3), update(3, 33))
    prepare("in one file, for nothing", update(5, 9))
    nights.do(
        "XA ROLLBACK 'in one file, for nothing'",
        update(4, 4),
        "XA COMMIT 'in one file'",
        update(4, 44),
        "FLUSH BINARY LOGS",
    )
    prepare("over files", update(5, 5), update(5, 55))
    nights.do("FLUSH BINARY LOGS", update(4, 444), "XA COMMIT 'over files'", "XA ROLLBACK 'given up'", update(4, 4444))
    nights.do("FLUSH BINARY LOGS", "XA COMMIT 'over the night'")
    nights.do("XA START 'at once'", update(2, 7), "XA END 'at once'", "XA COMMIT 'at once' ONE PHASE")
    publish(nights)
    assert [after for _, _, after in told(nights, "stock")] == [
        (4, 4),
        (3, 3),
        (3, 33),
        (4, 44),
        (4, 444),
        (5, 5),
        (5, 55),
        (4, 4444),
        (1, 1),
        (2, 7),
    ]
    changes = changes_of(lake(nights), f"{nights.schema}.stock")
    positions = changes["position"].to_pylist()
    logged = {gtid: (number, when) for number, (gtid, when) in enumerate(commits(nights.mysql, "binlog.000001"))}
    assert [logged[position][0] for position in positions] == sorted(logged[position][0] for position in positions)
    assert [micros(when) for when in changes["commit_time"].to_pylist()] == [logged[one][1] for one in positions]


@pytest.mark.slow
def test_every_type_odd_names_and_tables_without_a_key(nights: Nights) -> None:
    odd, table = "`odd.``Näme`", f"{nights.schema}.odd.`Näme"
    tables = {odd: (CASES[:60], table, ["id"]), "keyless": (CASES[60:120], f"{nights.schema}.keyless", [])}
    for name, (cases, _, key) in tables.items():
        nights.do(create_table(name, cases), *([] if key else [f"ALTER TABLE {name} DROP PRIMARY KEY"]))
    publish(nights)
    before = {name: rows_of(copy_of(lake(nights), table)) for name, (_, table, _) in tables.items()}
    for name, (cases, _, key) in tables.items():
        nights.do(
            # An ENUM's 0 is an error otherwise.
            "SET sql_mode = ''",
            *(f"INSERT INTO {name} VALUES ({id}, {', '.join(row)})" for id, row in enumerate(values_of(cases))),
            f"UPDATE {name} SET id = id + 100" if key else f"INSERT INTO {name} SELECT * FROM {name}",
            f"DELETE FROM {name} WHERE id % 2 LIMIT 1",
        )
    publish(nights)
    for name, (_, table, key) in tables.items():
        after = replayed(before[name], key, changes_of(lake(nights), table))
        assert after == rows_of(copy_of(lake(nights), table))
        assert sum(after.values()) > 5


@pytest.mark.slow
def test_what_cannot_be_told_whole_is_refused_before_any_work(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, v INT)", "INSERT INTO stock VALUES (1, 10)")
    with pytest.raises(PreflightError, match="only with copies that are rolled forward"):
        nights.night("full", changes=True).preflight()
    first = publish(nights)
    nights.do("TRUNCATE stock", "INSERT INTO stock VALUES (2, 20)")
    with pytest.raises(PreflightError, match=r"its changes since the last copy cannot be published: .*TRUNCATE"):
        nights.night("auto", changes=True).preflight()
    # As the hint says, one run without `changes`; the changes begin at its copy.
    run = publish(nights, changes=False)
    nights.do("CREATE TABLE late (id INT PRIMARY KEY)", "INSERT INTO stock VALUES (3, 30)")
    publish(nights)
    assert told(nights, "stock") == [("insert", None, (3, 30))]
    name = f"{nights.schema}.stock"
    assert read_changes(lake(nights), name).from_position == run.found["consolidate"]["position"]
    with pytest.raises(ChangesMissing):
        read_changes(lake(nights), name, first.found["consolidate"]["position"])
    # No feed goes back.
    past = first.found["consolidate"]["position"]
    with pytest.raises(PreflightError, match="their changes since the last copy cannot be published"):
        nights.night("auto", changes=True, as_of=past).preflight()


@pytest.mark.slow
def test_where_a_table_is_read_in_full_alone_the_others_have_no_gap(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
    first = publish(nights)
    nights.do("TRUNCATE stock", "INSERT INTO other VALUES (1)")
    with pytest.raises(PreflightError, match=r"tables = \[.*stock.\] and all other options"):
        nights.night("auto", changes=True).preflight()
    nights.number += 1
    run_id, tables = f"202601{nights.number:02}T000000Z-00000000", [f"{nights.schema}.stock"]
    alone = Pipeline(nights.spark, settings_of(nights.mysql), lake(nights), tables, run_id=run_id, refresh="auto")
    alone.record()
    alone.finish()
    nights.do("INSERT INTO stock VALUES (5)", "INSERT INTO other VALUES (2)")
    publish(nights)
    assert told(nights, "stock") == [("insert", None, (5,))]
    changes = changes_of(lake(nights), f"{nights.schema}.other", first.found["consolidate"]["position"])
    latest = read_latest(lake(nights), f"{nights.schema}.other")
    assert [one["id"] for one in changes["after"].to_pylist()] == [1, 2]
    # A copy of the past is not the latest one, so it ends no feed.
    past = publish(nights, as_of=alone.found["consolidate"]["position"], on_feed_gap="begin_anew")
    assert (past.found["consolidate"]["feed_gaps"], read_latest(lake(nights), f"{nights.schema}.other")) == ({}, latest)
    assert all(plan.feed_gap is not None for plan in past.plans)


@pytest.mark.slow
def test_a_value_in_between_that_nothing_holds_stops_the_run_or_the_table(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, day DATE)", "INSERT INTO stock VALUES (1, '2020-01-01')")
    nights.do("CREATE TABLE other (id INT PRIMARY KEY)")
    publish(nights)
    nights.do("SET sql_mode = ''", "UPDATE stock SET day = '0000-00-00'", "UPDATE stock SET day = '2020-01-02'")
    run = nights.night("auto", changes=True)
    run.record()
    run.snapshot()
    run.extract_delta()
    with pytest.raises(Exception, match="0000-00-00") as refusal:
        run.consolidate()
    assert "remove `Refresh.changes`" in str(refusal.value)
    run = publish(nights, on_table_error="skip")
    assert set(run.found["consolidate"]["skipped"]) == {f"{nights.schema}.stock"}
    assert set(run.found["consolidate"]["changes"]) == {f"{nights.schema}.other"}
    run = publish(nights, on_feed_gap="begin_anew")
    assert set(run.found["consolidate"]["feed_gaps"]) == {f"{nights.schema}.stock"}
    assert copy_of(lake(nights), f"{nights.schema}.stock").num_rows == 1
    with pytest.raises(ChangesMissing, match="0000-00-00"):
        read_changes(lake(nights), f"{nights.schema}.stock")


@pytest.mark.slow
def test_changes_of_a_part_of_a_table_are_those_of_its_rows_and_columns(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id INT PRIMARY KEY, v INT, note VARCHAR(9))", "CREATE TABLE keyless (v INT, w INT)")
    nights.do("INSERT INTO stock VALUES (1, 10, 'a'), (2, 90, 'b')", "INSERT INTO keyless VALUES (1, 1), (90, 1)")
    names = [f"{nights.schema}.{name}" for name in ("stock", "keyless")]
    part: dict[str, Any] = {"where": dict.fromkeys(names, "v < 50"), "columns": {names[0]: ["id", "note"]}}
    publish(nights, **part)
    nights.do(
        "UPDATE stock SET v = 60 WHERE id = 1",
        "UPDATE stock SET v = 20 WHERE id = 2",
        "UPDATE stock SET v = 70, note = 'c' WHERE id = 1",
        "UPDATE stock SET v = 30 WHERE id = 2",
        "INSERT INTO stock VALUES (3, 80, 'd'), (4, 40, 'e')",
        "UPDATE keyless SET v = 100 - v",
    )
    publish(nights, **part)
    own: dict[str, Any] = {"where": "v < 50"}
    target = lake(nights)
    found = read_changes(target, names[0], **own, columns=["id", "note"])
    changes = open_dataset(found).to_table().to_pylist()
    rows = [tuple(one[name] and tuple(one[name].values()) for name in ("before", "after")) for one in changes]
    assert rows == [((1, "a"), None), (None, (2, "b")), ((2, "b"), (2, "b")), (None, (4, "e"))]
    assert [one["order"] for one in changes] == [1, 2, 3, 4]
    rows = [
        tuple(one[name] and tuple(one[name].values()) for name in ("before", "after"))
        for one in open_dataset(read_changes(target, names[1], **own)).to_table().to_pylist()
    ]
    assert rows == [((1, 1), None), (None, (10, 1))]
    with pytest.raises(ChangesMissing, match="no copy yet"):
        read_changes(target, names[0])
