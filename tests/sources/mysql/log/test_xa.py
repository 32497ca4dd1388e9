"""XA transactions are logged when prepared and take effect when committed, possibly much later and in another file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from airflow_provider_cdc.errors import ImageNotWhole
from harness.mysql_server import MysqlServer
from tests.sources.changes import key
from tests.sources.mysql.log.reading import Connection, LogReading, executed, run


@pytest.fixture
def db(mysql: MysqlServer, schema: str) -> Iterator[Connection]:
    with mysql.connect(database=schema) as connection:
        run(connection, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 10), (2, 20), (3, 30)")
        run(connection, "CREATE TABLE k (id INT)", "SET xa_detach_on_prepare = ON")
        yield connection
    # A transaction that is left prepared, for instance by a failed test, would prevent dropping the schema.
    for _, _, _, xid in mysql.query("XA RECOVER"):
        mysql.query(f"XA ROLLBACK '{xid}'")


def prepare(connection: Connection, xid: str, *statements: str) -> None:
    run(connection, f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'")


CHANGE = ("UPDATE a SET v = -1 WHERE id = 1", "INSERT INTO a VALUES (9, 9)", "INSERT INTO k VALUES (5), (5)")
CHANGED = {key(1): (1, 10), key(9): None}


@pytest.mark.parametrize("flush", ["DO 0", "FLUSH BINARY LOGS"])
@pytest.mark.parametrize("compressed", ["OFF", "ON"])
def test_prepared_and_committed(mysql: MysqlServer, schema: str, db: Connection, flush: str, compressed: str) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    run(db, f"SET binlog_transaction_compression = {compressed}")
    prepare(db, "x", *CHANGE)
    run(db, flush, "UPDATE a SET v = 5 WHERE id = 2", "XA COMMIT 'x'", "UPDATE a SET v = 6 WHERE id IN (1, 3)")
    window = reading.read()
    assert window.before["a"] == {**CHANGED, key(2): (2, 20), key(3): (3, 30)}
    assert window.counts["k"] == Counter({(5,): 2})


def test_committed_in_one_phase(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    run(db, "XA START 'x', 'branch', 3", *CHANGE, "XA END 'x', 'branch', 3", "XA COMMIT 'x', 'branch', 3 ONE PHASE")
    window = reading.read()
    assert window.before["a"] == CHANGED
    assert window.counts["k"] == Counter({(5,): 2})


@pytest.mark.parametrize("flush", ["DO 0", "FLUSH BINARY LOGS"])
def test_rolled_back(mysql: MysqlServer, schema: str, db: Connection, flush: str) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    prepare(db, "x", *CHANGE)
    run(db, flush, "XA ROLLBACK 'x'", "UPDATE a SET v = 5 WHERE id = 2")
    window = reading.read()
    assert window.before["a"] == {key(2): (2, 20)}
    assert not window.counts.get("k")


@pytest.mark.parametrize("flush", ["DO 0", "FLUSH BINARY LOGS"])
def test_still_prepared_at_the_end(mysql: MysqlServer, schema: str, db: Connection, flush: str) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    prepare(db, "x", *CHANGE)
    run(db, flush, "UPDATE a SET v = 5 WHERE id = 2")
    window = reading.read()
    assert window.before["a"] == {key(2): (2, 20)}
    assert not window.counts.get("k")
    assert window.summaries[0].prepared == ["X'78',X'',1", "X'78',X'',1/1"]


@pytest.mark.parametrize("flush", ["DO 0", "FLUSH BINARY LOGS"])
def test_prepared_in_the_initial_position_and_committed_outside_it(
    mysql: MysqlServer, schema: str, db: Connection, flush: str
) -> None:
    """Its rows have a GTID that is in the initial position, but the GTID of its commit decides."""
    run(db, "FLUSH BINARY LOGS")
    prepare(db, "x", *CHANGE)
    reading = LogReading(mysql, schema, "a", "k")
    run(db, flush, "XA COMMIT 'x'")
    if flush == "DO 0":
        window = reading.read()
        assert window.before["a"] == CHANGED
        assert window.counts["k"] == Counter({(5,): 2})
    else:
        # The file with the changes is before the window, which is noticed when the segments are composed.
        [segment] = reading.segments()
        _, summary = reading.batches(segment, reading.tracked())
        assert list(summary.decided) == ["X'78',X'',1", "X'78',X'',1/1"]


def test_committed_in_the_initial_position(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "FLUSH BINARY LOGS")
    prepare(db, "x", *CHANGE)
    run(db, "XA COMMIT 'x'")
    prepare(db, "y", "UPDATE a SET v = 0 WHERE id = 1")
    run(db, "XA ROLLBACK 'y'")
    reading = LogReading(mysql, schema, "a", "k")
    run(db, "UPDATE a SET v = 7 WHERE id = 1")
    window = reading.read()
    assert window.before["a"] == {key(1): (1, -1)}
    assert not window.counts.get("k")


def test_commits_count_in_the_order_of_commits(mysql: MysqlServer, schema: str, db: Connection) -> None:
    """It is prepared first and committed last, so the others wrote the rows that were there before it."""
    reading = LogReading(mysql, schema, "a")
    prepare(db, "x", "DELETE FROM a WHERE id = 3")
    prepare(db, "y", "UPDATE a SET v = 21 WHERE id = 2", "INSERT INTO a VALUES (8, 8)")
    run(db, "UPDATE a SET v = 11 WHERE id = 1", "XA COMMIT 'y'", "UPDATE a SET v = 22 WHERE id = 2")
    run(db, "XA COMMIT 'x'", "INSERT INTO a VALUES (3, 33)")
    assert reading.read().before["a"] == {key(1): (1, 10), key(2): (2, 20), key(3): (3, 30), key(8): None}


def test_an_id_that_is_used_again(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    prepare(db, "x", "UPDATE a SET v = 11 WHERE id = 1", "INSERT INTO k VALUES (1)")
    run(db, "FLUSH BINARY LOGS", "XA COMMIT 'x'")
    prepare(db, "x", "UPDATE a SET v = 12 WHERE id = 1", "INSERT INTO k VALUES (2)")
    run(db, "XA ROLLBACK 'x'")
    prepare(db, "x", "UPDATE a SET v = 21 WHERE id = 2", "INSERT INTO k VALUES (3)")
    run(db, "FLUSH BINARY LOGS", "XA COMMIT 'x'")
    window = reading.read()
    assert window.before["a"] == {key(1): (1, 10), key(2): (2, 20)}
    assert window.counts["k"] == Counter({(1,): 1, (3,): 1})


@pytest.mark.parametrize("flush", ["DO 0", "FLUSH BINARY LOGS"])
def test_a_commit_after_the_bound_of_a_keyless_table(
    mysql: MysqlServer, schema: str, db: Connection, flush: str
) -> None:
    reading = LogReading(mysql, schema, "a", "k")
    prepare(db, "x", *CHANGE)
    prepare(db, "y", "INSERT INTO k VALUES (6)")
    run(db, "XA COMMIT 'y'")
    upper = executed(mysql)
    run(db, flush, "XA COMMIT 'x'")
    window = reading.read(upper=upper)
    assert window.before["a"] == CHANGED
    assert window.counts["k"] == Counter({(6,): 1})


def test_an_empty_transaction_is_prepared_all_the_same(mysql: MysqlServer, schema: str, db: Connection) -> None:
    reading = LogReading(mysql, schema, "a")
    prepare(db, "x", "DO 0")
    run(db, "UPDATE a SET v = 1 WHERE id = 1", "XA COMMIT 'x'")
    window = reading.read()
    assert window.before["a"] == {key(1): (1, 10)}
    assert window.summaries[0].decided == {}


def test_many_transactions_wait_while_the_memory_grows(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "DELETE FROM a", "SET cte_max_recursion_depth = 100000")
    reading = LogReading(mysql, schema, "a", "k")
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT {0} + {1} FROM n"
    for number in range(6):
        base = 10_000 * number
        prepare(
            db,
            f"x{number}",
            f"INSERT INTO a {rows.format(base, 'i, 1')}",
            f"INSERT INTO k {rows.format(base, 'i % 3')}",
        )
    run(db, *(f"XA COMMIT 'x{number}'" for number in (3, 5, 1)), "XA ROLLBACK 'x0'")
    window = reading.read()
    assert window.before["a"] == {key(10_000 * number + i): None for number in (1, 3, 5) for i in range(1, 3001)}
    assert window.counts["k"] == Counter({(10_000 * number + i,): 1000 for number in (1, 3, 5) for i in range(3)})


def test_changes_of_another_shape_stop_the_run_only_if_they_count(
    mysql: MysqlServer, schema: str, db: Connection
) -> None:
    """Prepared in the initial position, with images that cannot be used, which matters only once it is committed."""
    run(db, "FLUSH BINARY LOGS", "SET binlog_row_image = MINIMAL")
    prepare(db, "x", "UPDATE a SET v = 0 WHERE id = 1")
    prepare(db, "y", "UPDATE a SET v = 0 WHERE id = 2")
    run(db, "SET binlog_row_image = FULL", "XA ROLLBACK 'x'")
    reading = LogReading(mysql, schema, "a")
    run(db, "XA ROLLBACK 'y'", "UPDATE a SET v = 1 WHERE id = 3")
    assert reading.read().before["a"] == {key(3): (3, 30)}


def test_changes_without_whole_images_that_are_committed_later(mysql: MysqlServer, schema: str, db: Connection) -> None:
    run(db, "FLUSH BINARY LOGS", "SET binlog_row_image = MINIMAL")
    prepare(db, "x", "UPDATE a SET v = 0 WHERE id = 1")
    run(db, "SET binlog_row_image = FULL")
    reading = LogReading(mysql, schema, "a")
    run(db, "XA COMMIT 'x'")
    with pytest.raises(ImageNotWhole):
        reading.read()
