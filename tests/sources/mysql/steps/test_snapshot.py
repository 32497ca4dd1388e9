"""A position read under the lock must be exactly what the transaction sees, and a lock must not be held for longer than
necessary.

The oracle knows which transaction wrote which row: every writer chooses the GTIDs of its transactions, and each
transaction inserts one row that has its number.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pymysql
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.gtid import Gtid, GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import (
    LockNotGranted,
    PositionError,
    PreflightError,
    SchemaChanged,
    SourceUnavailable,
)
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server import server
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.mysql.server.server import parse_owned
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, session
from airflow_provider_cdc.sources.mysql.steps import chunk_reader, snapshot
from harness.mysql_server import MysqlServer

WRITERS = [uuid.UUID(int=number) for number in range(1, 5)]
IMPATIENT = LockPolicy(wait_seconds=1, tries=2, pause_seconds=0.1)
PATIENCE = 60
"""A time limit in seconds for short operations, even on a busy machine."""


@pytest.fixture(scope="module")
def source(mysql: MysqlServer) -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))


@pytest.fixture
def table(source: MysqlSource, mysql: MysqlServer, schema: str) -> Table:
    mysql.query(f"CREATE TABLE {schema}.t (writer INT, number INT, PRIMARY KEY (writer, number))")
    return source.record_initial([TablePlan(TableName(schema, "t"), "watermark", "")], LockPolicy()).tables[0]


@contextmanager
def writing(source: MysqlSource, table: Table) -> Iterator[None]:
    """Four writers, whose transaction ``number`` inserts the row (writer, number) under the GTID uuid:number."""
    stop = threading.Event()
    begun = threading.Barrier(5)

    def write(writer: int) -> None:
        with session(source.settings) as connection:
            begun.wait(PATIENCE)
            gtids = GtidSet.parse(query(connection, "SELECT @@global.gtid_executed")[0][0])
            number = 1
            while Gtid(WRITERS[writer].bytes, "", number) in gtids:
                number += 1
            first = number
            while not stop.is_set():
                query(connection, f"SET gtid_next = '{WRITERS[writer]}:{number}'")
                query(connection, f"INSERT INTO {table.name} VALUES ({writer}, {number})")
                number += 1
            assert number > first + 20, "hardly wrote at all"

    with ThreadPoolExecutor(4) as pool:
        started = [pool.submit(write, writer) for writer in range(4)]
        try:
            begun.wait(PATIENCE)
            yield
        finally:
            stop.set()
        for each in started:
            each.result()


def rows(reader: ChunkReader) -> set[tuple[int, int]]:
    return {(row["writer"], row["number"]) for batch in reader.read(Chunk(0)) for row in batch.to_pylist()}


def written(position: Position | None, since: GtidSet) -> set[tuple[int, int]]:
    """The rows of the transactions in ``position`` that are not in ``since``."""
    assert position is not None
    numbers = {str(writer): index for index, writer in enumerate(WRITERS)}
    found = set()
    for each in str(GtidSet.expect(position) - since).split(","):
        uuid_text, *intervals = each.split(":")
        for interval in intervals if uuid_text in numbers else ():
            first, _, last = interval.partition("-")
            found |= {(numbers[uuid_text], number) for number in range(int(first), int(last or first) + 1)}
    return found


class TestPositions:
    @pytest.fixture
    def since(self, source: MysqlSource, table: Table) -> GtidSet:
        return GtidSet.expect(source.bound_reads().upper)

    @pytest.mark.slow
    def test_of_a_lock_is_exactly_what_was_read(self, source: MysqlSource, table: Table, since: GtidSet) -> None:
        with writing(source, table):
            for _ in range(25):
                with source.reader(table, "lock", LockPolicy()) as reader:
                    time.sleep(0.01)  # other sessions commit in the meantime
                    assert rows(reader) == written(reader.upper, since)
                    assert 0 < reader.lock_seconds < PATIENCE

    @pytest.mark.slow
    def test_later_reads_see_all_of_initial(self, source: MysqlSource, table: Table, since: GtidSet) -> None:
        with writing(source, table):
            for consistency in ["watermark", "lock"] * 10:
                point = source.record_initial([TablePlan(table.name, consistency, "")], LockPolicy())
                with source.reader(table, "watermark", LockPolicy()) as reader:
                    assert rows(reader) >= written(point.position, since)
                    assert (reader.upper, reader.lock_seconds) == (None, 0.0)

    def test_initial_has_no_transaction_that_reads_do_not_see_yet(
        self, source: MysqlSource, mysql: MysqlServer, table: Table
    ) -> None:
        gtid = Gtid(uuid.uuid4().bytes, "", 1)
        with mysql.connect() as committing:
            query(committing, f"SET gtid_next = '{gtid}'")
            query(committing, "BEGIN")
            query(committing, f"INSERT INTO {table.name} VALUES (8, 8)")
            assert gtid in GtidSet.expect(source.bound_reads().upper), "the server does not know the transaction"
            point = source.record_initial([TablePlan(table.name, "watermark", "")], IMPATIENT)
            assert gtid not in GtidSet.expect(point.position)
            query(committing, "ROLLBACK")

    @pytest.mark.slow
    def test_upper_covers_all_that_was_read(self, source: MysqlSource, table: Table, since: GtidSet) -> None:
        begin = LogPlace.parse(source.bound_reads().log_end)
        log, start = begin.file, begin.position
        with session(source.settings) as connection:
            with writing(source, table):
                for _ in range(100):
                    last = query(connection, f"SELECT writer, MAX(number) FROM {table.name} GROUP BY writer")
                    bound = source.bound_reads()
                    position = GtidSet.expect(bound.upper)
                    assert all(Gtid(WRITERS[writer].bytes, "", number) in position for writer, number in last)
            assert bound.log_end.startswith(log)
            stop = LogPlace.parse(bound.log_end).position
            events = query(connection, f"SHOW BINLOG EVENTS IN '{log}' FROM {start}")
        logged = {info.split("'")[1] for _, _, kind, _, end, info in events if kind == "Gtid" and end <= stop}
        assert {f"{WRITERS[writer]}:{number}" for writer, number in last} <= logged

    def test_upper_covers_a_transaction_that_is_about_to_be_executed(
        self, source: MysqlSource, mysql: MysqlServer, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A transaction that reads already see ends at the worst moment: between the two queries."""
        gtid = Gtid(uuid.uuid4().bytes, "some_tag", 7)
        with mysql.connect() as ending:
            query(ending, f"SET gtid_next = '{gtid}'")
            query(ending, "BEGIN")
            query(ending, f"INSERT INTO {table.name} VALUES (9, 9)")

            def executed(connection: Connection) -> GtidSet:
                gtids = look(connection)
                query(ending, "COMMIT")
                return gtids

            look = server.executed
            monkeypatch.setattr(snapshot, "executed", executed)
            assert gtid in GtidSet.expect(source.bound_reads().upper)


class TestInitialPoint:
    def test_has_position_schemas_and_identity(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        point = source.record_initial([TablePlan(table.name, "watermark", "")], LockPolicy())
        assert point.position == GtidSet.parse(mysql.query("SELECT @@global.gtid_executed")[0][0])
        assert point.tables == (table,)
        assert point.identity.server == mysql.query("SELECT @@server_uuid")[0][0]
        assert point.lock_seconds == 0.0

    def test_has_the_schemas_after_the_position(
        self, source: MysqlSource, mysql: MysqlServer, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The log after the position does not show the statement."""

        def executed(connection: Connection) -> GtidSet:
            mysql.query(f"ALTER TABLE {table.name} ADD late INT")
            return look(connection)

        look = server.executed
        monkeypatch.setattr(snapshot, "executed", executed)
        point = source.record_initial([TablePlan(table.name, "watermark", "")], LockPolicy())
        assert [column.name for column in point.tables[0].columns] == ["writer", "number", "late"]

    def test_is_fixed_under_a_lock_where_one_is_planned(self, source: MysqlSource, table: Table, schema: str) -> None:
        with session(source.settings) as connection:
            query(connection, f"CREATE TABLE {schema}.u (c INT)")
        plans = [TablePlan(TableName(schema, "u"), "lock", ""), TablePlan(table.name, "watermark", "")]
        point = source.record_initial(plans, LockPolicy())
        assert [str(each.name) for each in point.tables] == [f"{schema}.u", f"{schema}.t"]
        assert 0 < point.lock_seconds < PATIENCE

    def test_needs_the_key_that_was_planned_with(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        mysql.query(f"ALTER TABLE {table.name} DROP PRIMARY KEY")
        with pytest.raises(SchemaChanged, match="lost its key"):
            source.record_initial([TablePlan(table.name, "watermark", "")], LockPolicy())

    def test_needs_the_table(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        mysql.query(f"DROP TABLE {table.name}")
        for consistency in ("watermark", "lock"):
            with pytest.raises(SchemaChanged):
                source.record_initial([TablePlan(table.name, consistency, "")], LockPolicy())

    def test_needs_the_settings(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        mysql.query("SET GLOBAL binlog_order_commits = OFF")
        try:
            with pytest.raises(PreflightError, match="binlog_order_commits"):
                source.record_initial([TablePlan(table.name, "watermark", "")], LockPolicy())
        finally:
            mysql.query("SET GLOBAL binlog_order_commits = ON")


class TestLock:
    @pytest.mark.slow
    def test_that_is_not_granted_says_so_and_leaves_nothing(
        self, source: MysqlSource, mysql: MysqlServer, table: Table
    ) -> None:
        with mysql.connect(autocommit=False) as busy, busy.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table.name} VALUES (0, 0)")
            before = time.monotonic()
            with pytest.raises(LockNotGranted, match="2 tries of 1 s") as caught:
                source.record_initial([TablePlan(table.name, "lock", "")], IMPATIENT)
            assert 2 < time.monotonic() - before < PATIENCE
            assert caught.value.where == str(table.name)
            with pytest.raises(LockNotGranted), source.reader(table, "lock", IMPATIENT):
                pass
        assert_free(mysql, table)

    def test_lets_others_write_between_its_tries(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        policy = LockPolicy(wait_seconds=1, tries=PATIENCE, pause_seconds=1.0)
        with mysql.connect(autocommit=False) as busy, busy.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute(f"INSERT INTO {table.name} VALUES (0, 0)")
            trying = pool.submit(source.record_initial, [TablePlan(table.name, "lock", "")], policy)
            deadline = time.monotonic() + PATIENCE
            while not locks_of(mysql, table, "PENDING"):
                assert time.monotonic() < deadline, "no session waits for a lock"
                time.sleep(0.01)
            # This is queued behind the waiting lock, and is executed when that gives up.
            mysql.query(f"INSERT INTO {table.name} VALUES (0, 1)")
            assert not trying.done()
            busy.commit()
            trying.result()

    @pytest.mark.slow
    def test_is_granted_by_a_later_try(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        policy = LockPolicy(wait_seconds=1, tries=5, pause_seconds=0.1)
        with mysql.connect(autocommit=False) as busy, busy.cursor() as cursor, ThreadPoolExecutor(1) as pool:
            cursor.execute(f"INSERT INTO {table.name} VALUES (0, 0)")
            granted = pool.submit(source.record_initial, [TablePlan(table.name, "lock", "")], policy)
            time.sleep(1.5)
            free = time.monotonic()
            busy.commit()
            # The time in which it was waited for does not count.
            assert granted.result().lock_seconds < time.monotonic() - free

    def test_is_gone_once_the_transaction_is_open(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        with source.reader(table, "lock", LockPolicy()) as reader:
            assert_free(mysql, table)
            mysql.query(f"INSERT INTO {table.name} VALUES (0, 0)")
            assert rows(reader) == set()
            held = reader.lock_seconds
            assert reader.lock_seconds == held

    def test_stays_through_the_read_if_asked_to(self, source: MysqlSource, mysql: MysqlServer, table: Table) -> None:
        with source.reader(table, "lock", LockPolicy(through_read=True)) as reader:
            with (
                mysql.connect(init_command="SET lock_wait_timeout = 1") as other,
                pytest.raises(pymysql.OperationalError, match="Lock wait timeout"),
            ):
                query(other, f"INSERT INTO {table.name} VALUES (0, 0)")
            assert rows(reader) == set()
            assert reader.lock_seconds > 1
        assert_free(mysql, table)
        mysql.query(f"INSERT INTO {table.name} VALUES (0, 0)")

    def test_that_was_lost_during_the_read_of_one_of_several_ranges_stops_this_read(
        self, source: MysqlSource, mysql: MysqlServer, table: Table
    ) -> None:
        policy = LockPolicy(through_read=True)
        with pytest.raises(SourceUnavailable), source.one_session() as task:  # noqa: PT012
            with task.reader(table, "lock", policy) as first:
                assert rows(first) == set()
                first.wait_until_durable()
            with task.reader(table, "lock", policy) as second:
                ((holder,),) = mysql.query(
                    "SELECT PROCESSLIST_ID FROM performance_schema.metadata_locks JOIN performance_schema.threads "
                    "ON THREAD_ID = OWNER_THREAD_ID WHERE OBJECT_SCHEMA = %s AND LOCK_TYPE = 'SHARED_READ_ONLY'",
                    (table.name.schema,),
                )
                mysql.query(f"KILL {holder}")
                assert rows(second) == set()
                second.wait_until_durable()
                pytest.fail("the lock was lost before the end of the read")

    @pytest.mark.parametrize("through_read", [False, True])
    def test_is_released_when_the_reader_fails(
        self, through_read: bool, source: MysqlSource, mysql: MysqlServer, table: Table
    ) -> None:
        with pytest.raises(ZeroDivisionError), source.reader(table, "lock", LockPolicy(through_read=through_read)):
            raise ZeroDivisionError
        assert_free(mysql, table)

    def test_is_released_when_the_transaction_does_not_open(
        self, source: MysqlSource, mysql: MysqlServer, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError

        for module in (chunk_reader, snapshot):
            monkeypatch.setattr(module, "executed", fail)
        with pytest.raises(ZeroDivisionError), source.reader(table, "lock", LockPolicy()):
            pass
        with pytest.raises(ZeroDivisionError):
            source.record_initial([TablePlan(table.name, "lock", "")], LockPolicy())
        assert_free(mysql, table)

    def test_needs_no_privilege_where_it_is_not_used(
        self, source: MysqlSource, mysql: MysqlServer, table: Table
    ) -> None:
        mysql.query("CREATE USER unlocking")
        try:
            mysql.query(f"GRANT SELECT ON {table.name.schema}.* TO unlocking")
            mysql.query("GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO unlocking")
            plain = MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "unlocking"))
            plans = plain.preflight([str(table.name)])
            point = plain.record_initial(plans, LockPolicy())
            plain.check_identity(point.identity, point.position)
            plain.plan_chunks(table, 10)
            with plain.reader(table, "watermark", LockPolicy()) as reader:
                assert rows(reader) == set()
            plain.bound_reads()
        finally:
            mysql.query("DROP USER unlocking")


def assert_free(mysql: MysqlServer, table: Table) -> None:
    # Locks end with their session, a moment after its connection.
    deadline = time.monotonic() + PATIENCE
    while locks := locks_of(mysql, table):
        assert time.monotonic() < deadline, f"there is still {locks}"
        time.sleep(0.01)


def locks_of(mysql: MysqlServer, table: Table, status: str = "%") -> list[tuple[str]]:
    return mysql.query(
        "SELECT LOCK_STATUS FROM performance_schema.metadata_locks "
        "WHERE OBJECT_SCHEMA = %s AND OBJECT_NAME = %s AND LOCK_TYPE = 'SHARED_READ_ONLY' AND LOCK_STATUS LIKE %s",
        (table.name.schema, table.name.name, status),
    )


class TestOwned:
    A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "7e11fa47-71ca-11e1-9e33-c80aa9429561"

    @pytest.mark.parametrize(
        ("text", "owned"),
        [
            ("", ""),
            ("\n", ""),
            (f"{A}:5#21", f"{A}:5"),
            (f"{A}:5#21:7#3:8#12", f"{A}:5:7-8"),
            (f"{A}:5#21#22", f"{A}:5"),
            (f"{A}:5#21,\n{B}:1#2", f"{A}:5,{B}:1"),
            # MySQL 9.7 puts nothing between two sets; here 21 and 2 are threads, not part of what follows.
            (f"{A}:5#21{B}:1#2{A}:tag:3#24:5#21", f"{A}:5:tag:3:5,{B}:1"),
        ],
    )
    def test_is_read_in_every_form(self, text: str, owned: str) -> None:
        assert str(parse_owned(text)) == owned

    @pytest.mark.parametrize("text", ["x", f"5#1{A}:1#2", f"{A}:1#2 and more"])
    def test_is_refused_in_any_other_form(self, text: str) -> None:
        with pytest.raises(PositionError):
            parse_owned(text)

    def test_is_read_as_the_server_prints_it(self, mysql: MysqlServer) -> None:
        gtids = [f"{self.A}:{100 + number}" for number in range(3)] + [f"{self.B}:1", f"{self.B}:some_tag:1"]
        sessions = [mysql.connect() for _ in gtids]
        try:
            for connection, gtid in zip(sessions, gtids, strict=True):
                query(connection, f"SET gtid_next = '{gtid}'")
            owned = parse_owned(mysql.query("SELECT @@global.gtid_owned")[0][0])
            assert owned == GtidSet.parse(",".join(gtids))
        finally:
            for connection in sessions:
                connection.close()
