"""Random histories on a real server: the net change undoes them, and agrees with another reader of the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from airflow_provider_cdc.core.tables.net_change import Change, net, net_counts, rewind, rewind_counts, roll_forward
from airflow_provider_cdc.sources.mysql.log import dump, segments
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from harness.mysql_server import MysqlServer
from tests.seeds import examples
from tests.servers import throw_away_mysql
from tests.sources.changes import Row, key
from tests.sources.mysql.log.reading import Connection, LogReading, Window, executed, log_end, run

IDS = st.integers(1, 6)
VALUES = st.sampled_from(["NULL", "''", "'a'", "'A'", "'é'", "REPEAT('x', 300)"])

STATEMENTS = st.one_of(
    st.builds("REPLACE INTO a VALUES ({}, '{}', {})".format, IDS, st.sampled_from("xyX"), VALUES),
    st.builds("INSERT IGNORE INTO a VALUES ({}, '{}', {})".format, IDS, st.sampled_from("xyX"), VALUES),
    st.builds("INSERT INTO a VALUES ({0}, 'x', {1}) ON DUPLICATE KEY UPDATE v = {1}".format, IDS, VALUES),
    st.builds("UPDATE a SET v = {} WHERE id = {}".format, VALUES, IDS),
    st.builds("UPDATE IGNORE a SET id = id + {} WHERE id < {}".format, st.integers(-1, 1), IDS),
    st.builds("UPDATE IGNORE a SET s = UPPER(s) WHERE id = {}".format, IDS),
    st.builds("DELETE FROM a WHERE id = {}".format, IDS),
    st.builds("INSERT INTO k VALUES ({}, {})".format, IDS, VALUES),
    st.builds("INSERT INTO k SELECT id, v FROM a WHERE id < {}".format, IDS),
    st.builds("UPDATE k SET v = {} WHERE id = {}".format, VALUES, IDS),
    st.builds("DELETE FROM k WHERE id = {} LIMIT 1".format, IDS),
    st.builds("INSERT INTO other VALUES ({})".format, IDS),
    st.sampled_from(["SAVEPOINT s", "ROLLBACK TO s"]),
)

SESSIONS = st.sampled_from(
    ["DO 0", "SET binlog_transaction_compression = ON", "SET gtid_next = 'AUTOMATIC:some_tag'", "FLUSH BINARY LOGS"]
)
TRANSACTIONS = st.tuples(
    SESSIONS,
    st.lists(STATEMENTS, min_size=1, max_size=5),
    st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK", "xa", "xa rollback"]),
)


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    """A server with full metadata in its table maps: the other reader needs the columns' names."""
    with throw_away_mysql({"binlog_row_metadata": "FULL"}) as server:
        server.query("CREATE DATABASE histories")
        yield server


@pytest.fixture(scope="module")
def db(server: MysqlServer) -> Iterator[Connection]:
    with server.connect(database="histories") as connection:
        run(
            connection,
            "CREATE TABLE a (id INT, s VARCHAR(3), v VARCHAR(400), PRIMARY KEY (id, s)) COLLATE utf8mb4_0900_ai_ci",
            "CREATE TABLE k (id INT, v VARCHAR(400))",
            "CREATE TABLE other (id INT)",
        )
        yield connection


def apply(connection: Connection, number: int, transaction: tuple[str, list[str], str]) -> None:
    setting, statements, end = transaction
    xid = f"'h{number}'"
    if "some_tag" in setting and not any(word in end for word in ("COMMIT", "xa")):
        setting = "DO 0"
    run(connection, setting, f"XA START {xid}" if end.startswith("xa") else "BEGIN")
    saved = False
    for statement in statements:
        if statement == "ROLLBACK TO s" and not saved:
            continue
        saved = saved or statement == "SAVEPOINT s"
        run(connection, statement)
    if end.startswith("xa"):
        run(connection, f"XA END {xid}", f"XA PREPARE {xid}", "SET gtid_next = AUTOMATIC")
        run(connection, f"XA {'ROLLBACK' if 'rollback' in end else 'COMMIT'} {xid}")
    else:
        run(connection, end)
    run(connection, "SET gtid_next = AUTOMATIC, binlog_transaction_compression = OFF")


def rows_of(server: MysqlServer) -> tuple[dict[bytes, Row], Counter[Row]]:
    a = {key(row[0], row[1]): row for row in server.query("SELECT * FROM histories.a")}
    return a, Counter(server.query("SELECT * FROM histories.k"))


def empty(db: Connection) -> None:
    run(db, "DELETE FROM a", "DELETE FROM k", "DELETE FROM other")


@pytest.mark.slow
@pytest.mark.parametrize("in_parts", [False, True])
@given(before=st.lists(TRANSACTIONS, max_size=4), within=st.lists(TRANSACTIONS, max_size=8))
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_net_change_undoes_the_history_and_does_it_again(
    in_parts: bool,
    server: MysqlServer,
    db: Connection,
    monkeypatch: pytest.MonkeyPatch,
    before: list[tuple[str, list[str], str]],
    within: list[tuple[str, list[str], str]],
) -> None:
    if in_parts:
        monkeypatch.setattr(segments, "NET_BYTES", 200)
        monkeypatch.setattr(dump, "RAW_BYTES", 300)
    empty(db)
    for number, transaction in enumerate(before):
        apply(db, number, transaction)
    keyed, keyless = rows_of(server)
    reading = LogReading(server, "histories", "a", "k", mode="disabled")
    for number, transaction in enumerate(within):
        apply(db, number, transaction)
    window = reading.read()
    keyed_after, keyless_after = rows_of(server)

    rolled = reading.read(forward=True)
    later = {k: Change(rolled.before["a"][k], row) for k, row in rolled.after.get("a", {}).items()}
    assert roll_forward(keyed, later) == keyed_after
    assert all(change.before == keyed.get(k) for k, change in later.items())
    assert rewind_counts(keyless, {row: -count for row, count in rolled.counts.get("k", {}).items()}) == keyless_after

    touched = window.before.get("a", {})
    assert rewind(keyed_after, {k: Change(row, None) for k, row in touched.items()}) == keyed
    assert rewind_counts(keyless_after, window.counts.get("k", Counter())) == keyless


def test_a_file_whose_keys_do_not_fit_into_memory_is_netted_in_parts(
    server: MysqlServer, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "NET_BYTES", 200)
    monkeypatch.setattr(dump, "RAW_BYTES", 300)
    empty(db)
    run(db, *(f"INSERT INTO a VALUES ({number}, 'x', 'first')" for number in range(20)))
    keyed, _ = rows_of(server)
    reading = LogReading(server, "histories", "a", "k", mode="disabled")
    run(db, "UPDATE a SET v = 'second'", "INSERT INTO k VALUES (1, 'a')", "UPDATE a SET v = 'third' WHERE id > 3")
    # A prepared transaction must wait for its end, and so must everything that is netted in the meantime.
    run(db, "XA START 'w'", "UPDATE a SET v = 'w' WHERE id < 3", "XA END 'w'", "XA PREPARE 'w'")
    with server.connect(database="histories") as other, other.cursor() as cursor:
        for number in range(5, 20):
            cursor.execute(f"UPDATE a SET v = 'fourth' WHERE id = {number}")
    run(db, "XA COMMIT 'w'", "DELETE FROM k", "DELETE FROM a WHERE id > 9")
    window = reading.read()
    assert [summary.parts > 2 for summary in window.summaries] == [True]
    assert window.before["a"] == keyed
    assert not window.counts.get("k")


PLAIN = st.tuples(
    st.just("DO 0"), st.lists(STATEMENTS, min_size=1, max_size=5), st.sampled_from(["COMMIT", "ROLLBACK"])
)


@pytest.mark.slow
@given(within=st.lists(PLAIN, min_size=1, max_size=10))
@settings(max_examples=examples(25))
def test_the_net_change_is_that_of_the_specification_over_another_reader(
    server: MysqlServer, db: Connection, within: list[tuple[str, list[str], str]]
) -> None:
    """Without compression and tags, which the other reader silently skips."""
    empty(db)
    for value in range(1, 4):
        run(db, f"INSERT INTO a VALUES ({value}, 'x', 'v')", f"INSERT INTO k VALUES ({value}, 'v')")
    reading = LogReading(server, "histories", "a", "k", mode="disabled")
    start = log_end(server)
    for number, transaction in enumerate(within):
        apply(db, number, transaction)
    window = reading.read()
    keyed, counts = by_another_reader(server, start)
    assert window.before.get("a", {}) == keyed
    assert window.counts.get("k", Counter()) == counts
    assert_images_are_counted(window)


def assert_images_are_counted(window: Window) -> None:
    assert window.images >= sum(len(rows) for rows in window.before.values())


def by_another_reader(server: MysqlServer, start: LogPlace) -> tuple[dict[bytes, Row | None], dict[Row, int]]:
    logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)
    stream = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": "root", "passwd": ""},
        server_id=4_000_000_000,
        log_file=start.file,
        log_pos=start.position,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=["histories"],
    )
    keyed: list[dict[bytes, Change[Row]]] = []
    keyless: list[tuple[Row | None, Row | None]] = []
    for event in stream:
        names = [column.name for column in event.columns]
        for change in event.rows:
            before, after = (
                tuple(values[name] for name in names) if values is not None else None
                for values in (
                    change.get("before_values") or (change["values"] if isinstance(event, DeleteRowsEvent) else None),
                    change.get("after_values") or (change["values"] if isinstance(event, WriteRowsEvent) else None),
                )
            )
            if event.table == "k":
                keyless.append((before, after))
            elif event.table == "a":
                if before and after and before[:2] == after[:2]:
                    keyed.append({key(*before[:2]): Change(before, after)})
                else:
                    keyed += [{key(*before[:2]): Change(before, None)}] if before else []
                    keyed += [{key(*after[:2]): Change(None, after)}] if after else []
    stream.close()
    return {k: change.before for k, change in net(keyed).items()}, net_counts(keyless)


def test_gtids_of_the_window_are_those_executed_in_it(server: MysqlServer, db: Connection) -> None:
    empty(db)
    reading = LogReading(server, "histories", "a")
    for number in range(7):
        run(db, f"INSERT INTO a VALUES ({number}, 'x', NULL)")
    assert sum(summary.transactions for summary in reading.read().summaries) == 7
    assert executed(server) != reading.initial
