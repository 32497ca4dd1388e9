"""A copy at a past position requires that nothing on which it depends has changed since. The error names what changed,
and the earliest possible time.
"""

from __future__ import annotations

import random
import re
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pymysql
import pytest

from airflow_provider_cdc.core.checks import Check, Moment, problems_of
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.checks.past import SINCE, STATEMENTS, Past, PastContext
from airflow_provider_cdc.sources.mysql.log.prefixes import Prefix, prefix_at
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.steps.past import wait_until_visible
from airflow_provider_cdc.sources.mysql.steps.positions import resolve
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory
from tests.seeds import examples, seeds
from tests.sources.mysql.log.reading import executed, log_end, settings


@pytest.fixture
def server(mysql_factory: MysqlFactory) -> MysqlServer:
    server = mysql_factory({})
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    server.query("CREATE TABLE d.other (id INT PRIMARY KEY, v INT)")
    server.query("INSERT INTO d.t VALUES (1, 1)")
    return server


def problems(
    server: MysqlServer, past: Past, table: str = "t", checks: Sequence[Check[PastContext]] = (*SINCE, *STATEMENTS)
) -> list[Problem]:
    with session(settings(server)) as connection:
        context = PastContext(
            connection,
            position=past.prefix.position,
            settings=settings(server),
            past=past,
            tables=read_tables(connection, [TableName("d", table)]),
        )
        return problems_of(checks, Moment.PREFLIGHT, context)


def now(server: MysqlServer) -> datetime:
    time.sleep(1.1)
    moment = datetime.now(UTC)
    time.sleep(0.1)
    server.query("REPLACE INTO d.other VALUES (1, 1)")
    return moment


@pytest.mark.slow
def test_nothing_is_wrong_with_a_quiet_past_until_a_table_is_replaced_unlogged(server: MysqlServer) -> None:
    moment = now(server)
    for number in range(5):
        server.query(f"INSERT INTO d.t VALUES ({number + 10}, 1)")
        server.query("FLUSH BINARY LOGS")
        server.query(f"ALTER TABLE d.other ADD COLUMN c{number} INT")
    assert problems(server, resolve(settings(server), moment)) == []

    source, options = MysqlSource(settings(server)), StepOptions()
    with server.connect(database="d") as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = UNIX_TIMESTAMP() + 2")
        cursor.execute("ALTER TABLE t ADD INDEX (v)")
        # The table is newer than the moment, and the log shows why.
        source.check_past(moment, PLAN, options)
        assert source.record_past(moment, PLAN, options).tables
        before = executed(server)
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("SET timestamp = @@timestamp + 1")
        cursor.execute("DROP TABLE t")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    for check in (source.check_past, source.record_past):
        with pytest.raises(PreflightError, match="not in the log") as refused:
            check(moment, PLAN, options)
        (problem,) = refused.value.problems
        assert problem.where == "d.t"
        assert "set `as_of` to" in problem.hint
    # Nothing was logged since, so the new table is a state of this position, too.
    source.check_past(before, PLAN, options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "what"),
    [
        pytest.param(["ALTER TABLE d.t ADD COLUMN w INT"], "ALTER TABLE", marks=pytest.mark.long),
        pytest.param(["TRUNCATE d.t"], "TRUNCATE", marks=pytest.mark.long),
        pytest.param(["RENAME TABLE d.t TO d.x", "RENAME TABLE d.x TO d.t"], "RENAME", marks=pytest.mark.long),
        pytest.param(
            ["DROP TABLE d.t", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)"], "CREATE TABLE", marks=pytest.mark.long
        ),
        (["ALTER TABLE d.t ADD COLUMN w INT", "FLUSH BINARY LOGS", "ALTER TABLE d.t DROP COLUMN w"], "ALTER TABLE"),
        (["SET GLOBAL binlog_order_commits = OFF", "SET GLOBAL binlog_order_commits = ON"], "was set at"),
        (["SET SESSION binlog_format = STATEMENT", "INSERT INTO d.t VALUES (7, 7)"], "logged as a statement"),
        (["SET SESSION binlog_row_image = MINIMAL", "UPDATE d.t SET v = 7"], "lack columns"),
    ],
)
def test_what_changed_since_is_named_with_the_earliest_time_that_works(
    server: MysqlServer, statements: list[str], what: str
) -> None:
    moment = now(server)
    time.sleep(1.1)
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    past = resolve(settings(server), moment, final=True)
    (problem,) = problems(server, past)
    assert what in problem.what
    earliest = re.search(r"set `as_of` to (\S+) or later", problem.hint)
    assert earliest is not None
    # The time that the error names works.
    time.sleep(2.2)
    server.query("REPLACE INTO d.other VALUES (2, 2)")
    assert problems(server, resolve(settings(server), datetime.fromisoformat(earliest[1]))) == []


def test_differences_of_documents_do_not_keep_it_from_going_back(server: MysqlServer) -> None:
    server.query("CREATE TABLE d.documents (id INT PRIMARY KEY, j JSON)")
    server.query("INSERT INTO d.documents VALUES (1, JSON_OBJECT('a', REPEAT('x', 100), 'b', 1))")
    before = executed(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        cursor.execute("UPDATE d.documents SET j = JSON_SET(j, '$.b', 2)")
    assert problems(server, resolve(settings(server), before), "documents") == []


@pytest.mark.slow
def test_a_gtid_set_is_checked_in_the_same_way(server: MysqlServer) -> None:
    before = executed(server)
    server.query("INSERT INTO d.t VALUES (2, 2)")
    server.query("ALTER TABLE d.t ADD COLUMN w INT")
    (problem,) = problems(server, resolve(settings(server), before))
    assert "ALTER TABLE" in problem.what


@pytest.mark.slow
def test_a_past_before_anonymous_transactions_is_refused(server: MysqlServer) -> None:
    """They are part of no set, so the log seems to go on behind them where it ended before them."""
    before = executed(server)
    time.sleep(1.1)
    for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE"):
        server.query(f"SET GLOBAL gtid_mode = {mode}")
    server.query("UPDATE d.t SET v = 7")
    for mode in ("ON_PERMISSIVE", "ON"):
        server.query(f"SET GLOBAL gtid_mode = {mode}")
    server.query("REPLACE INTO d.other VALUES (2, 2)")
    found = problems(server, resolve(settings(server), before), checks=SINCE)
    assert any(problem.where == "gtid_mode" and "was set at" in problem.what for problem in found)


@pytest.mark.slow
def test_before_the_servers_start_nothing_is_known(server: MysqlServer) -> None:
    moment = now(server)
    time.sleep(2)
    server.restart()
    time.sleep(1)
    server.query("REPLACE INTO d.other VALUES (3, 3)")
    found = problems(server, resolve(settings(server), moment))
    assert any("was started at" in problem.what for problem in found)


@pytest.mark.slow
def test_a_time_that_nothing_was_committed_after_is_final_at_once(server: MysqlServer) -> None:
    """A night of a quiet server copies the same position, whether it begins before or after the next commit."""
    before, moment = executed(server), datetime.now(UTC)
    past = resolve(settings(server), moment, final=True)
    assert past.prefix.position == before
    assert past.prefix.following is None
    server.query("REPLACE INTO d.other VALUES (4, 4)")
    again = resolve(settings(server), moment, final=True)
    assert (again.prefix.position, again.prefix.place) == (past.prefix.position, past.prefix.place)
    assert again.prefix.following is not None
    assert again.prefix.following > moment


@pytest.mark.slow
def test_a_commit_that_has_its_time_and_that_the_server_does_not_send_yet_belongs_to_the_position(
    server: MysqlServer,
) -> None:
    """Between its stages, a group commit is in the log, but readers of the log get it only after it is on the disk."""
    server.query("SET GLOBAL sync_binlog = 1, GLOBAL binlog_group_commit_sync_delay = 1000000")
    before, end = executed(server), log_end(server)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(server.query, "REPLACE INTO d.other VALUES (5, 5)")
        while log_end(server) == end:
            time.sleep(0.01)
        moment = datetime.now(UTC)
        sent = prefix_at(settings(server), moment)
        past = resolve(settings(server), moment, final=True)
        committing.result(60)
    assert sent.position == before, "the server sent it at once: the test provokes nothing"
    assert past.prefix.position == executed(server) != before
    server.query("REPLACE INTO d.other VALUES (6, 6)")
    assert resolve(settings(server), moment, final=True).prefix.position == past.prefix.position


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_no_later_commit_belongs_to_a_position_of_a_busy_server(seed: int, server: MysqlServer) -> None:
    choose = random.Random(seed)
    server.query("SET GLOBAL sync_binlog = 1, GLOBAL binlog_group_commit_sync_delay = 20000")
    found: list[tuple[datetime, Prefix]] = []
    ended = threading.Event()

    def write(number: int) -> None:
        with server.connect(database="d") as connection, connection.cursor() as cursor:
            while not ended.is_set():
                cursor.execute("SET timestamp = %s", (choose.choice([0, 1, 2_000_000_000]),))
                cursor.execute("REPLACE INTO other VALUES (%s, 1)", (number,))

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, number) for number in range(6)]
        try:
            for _ in range(examples(20)):
                moment = datetime.now(UTC)
                found.append((moment, resolve(settings(server), moment, final=True).prefix))
                if choose.random() < 0.2:
                    server.query("FLUSH BINARY LOGS")
        finally:
            ended.set()
        for writer in writers:
            writer.result(60)
    server.query("REPLACE INTO d.other VALUES (99, 1)")
    for moment, prefix in found:
        later = resolve(settings(server), moment).prefix
        assert later.following is not None
        assert later.position == prefix.position


def test_the_past_is_visible_before_it_is_read(server: MysqlServer) -> None:
    position = executed(server)
    with session(settings(server)) as connection:
        wait_until_visible(connection, position, 1)
        with pytest.raises(SourceUnavailable, match="not yet visible to queries"):
            wait_until_visible(connection, position | GtidSet.parse("11111111-2222-3333-4444-555555555555:1"), 0.3)


PLAN = [TablePlan(TableName("d", "t"), "watermark", "")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("statements", "what", "again"),
    [
        # The log shows this one; after the position is fixed, reading the log finds it.
        (["ALTER TABLE d.t ADD COLUMN w INT"], "ALTER TABLE", False),
        (["SET GLOBAL binlog_order_commits = OFF", "SET GLOBAL binlog_order_commits = ON"], "was set at", True),
    ],
)
def test_a_past_that_is_over_is_refused_before_any_work(
    server: MysqlServer, statements: list[str], what: str, again: bool
) -> None:
    """By preflight; changes that the log does not show also by a task that is cleared alone."""
    source = MysqlSource(settings(server))
    moment = now(server)
    source.check_past(moment, PLAN, StepOptions())
    time.sleep(1.1)
    for statement in statements:
        server.query(statement)
    server.query("REPLACE INTO d.other VALUES (2, 2)")
    with pytest.raises(PreflightError, match=what):
        source.check_past(moment, PLAN, StepOptions())
    if again:
        with pytest.raises(PreflightError, match=what):
            source.record_past(moment, PLAN, StepOptions())


@pytest.mark.long
def test_a_commit_that_is_in_the_log_and_that_nobody_sees_is_waited_for(server: MysqlServer) -> None:
    """As one that waits for a replica (semi-synchronous replication)."""
    source = MysqlSource(settings(server))
    try:
        server.query("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    except pymysql.MySQLError as error:
        pytest.skip(f"this MySQL comes without it: {error}")
    server.query("SET GLOBAL rpl_semi_sync_source_timeout = 60000")
    server.query("SET GLOBAL rpl_semi_sync_source_enabled = ON")
    before = executed(server)
    uuid, _, last = str(before).partition(":1-")
    position = GtidSet.parse(f"{uuid}:1-{int(last) + 1}")
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(server.query, "INSERT INTO d.t VALUES (2, 2)")
        try:
            waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync%'"
            deadline = time.monotonic() + 50
            while not server.query(waiting):
                assert time.monotonic() < deadline, "nothing holds the commit"
                time.sleep(0.05)
            assert executed(server) == before, "it is visible: the test provokes nothing"
            with session(settings(server)) as connection, pytest.raises(SourceUnavailable, match="not yet visible"):
                wait_until_visible(connection, position, 1)
            recording = pool.submit(source.record_past, position, PLAN, StepOptions())
        finally:
            server.query("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        committing.result(60)
        assert recording.result(60).position == position


@pytest.mark.slow
def test_a_setting_is_held_against_the_commits_and_not_against_the_head_of_a_file(server: MysqlServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET timestamp = %s", (int(time.time()) + 7200,))
        cursor.execute("FLUSH BINARY LOGS")
    before = executed(server)
    server.query("SET GLOBAL binlog_order_commits = OFF")
    time.sleep(1.1)
    server.query("INSERT INTO d.t VALUES (2, 2)")
    server.query("SET GLOBAL binlog_order_commits = ON")
    (problem,) = problems(server, resolve(settings(server), before))
    assert problem.where == "binlog_order_commits"


@pytest.mark.slow
def test_what_a_restored_backup_put_into_gtid_purged_is_part_of_the_position(server: MysqlServer) -> None:
    before = executed(server)
    server.query("SET GLOBAL gtid_purged = '+11111111-2222-3333-4444-555555555555:1-5'")
    for flush in (False, True):
        if flush:
            server.query("FLUSH BINARY LOGS")
        server.query("REPLACE INTO d.other VALUES (2, 2)")
        position = executed(server)
        past = resolve(settings(server), now(server))
        assert past.prefix.position == position
        assert problems(server, past) == []
        past = resolve(settings(server), position)
        assert past.prefix.position == position
        assert problems(server, past) == []
    (problem,) = problems(server, resolve(settings(server), before))
    assert problem.where == "gtid_purged"


@pytest.mark.slow
def test_a_log_without_checksums_is_read_from_the_middle(mysql_factory: MysqlFactory) -> None:
    server = mysql_factory({"binlog_checksum": "NONE"})
    server.query("CREATE DATABASE d")
    for name in ("t", "other"):
        server.query(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v INT)")
    assert problems(server, resolve(settings(server), now(server))) == []


@pytest.mark.slow
def test_a_clock_that_was_set_back_does_not_keep_it_looking_for_ever(server: MysqlServer) -> None:
    moment = now(server)
    server.query("INSERT INTO d.t VALUES (2, 2)")
    name = str(server.query("SHOW BINARY LOG STATUS")[0][0])
    server.query("FLUSH BINARY LOGS")
    commit_later(server.directory / "data" / name, moment, 1_500_000)
    server.query("ALTER TABLE d.t ADD COLUMN w INT")
    (problem,) = problems(server, resolve(settings(server), moment))
    assert "ALTER TABLE" in problem.what
    earliest = re.search(r"set `as_of` to (\S+) or later", problem.hint)
    assert earliest is not None
    assert problems(server, resolve(settings(server), datetime.fromisoformat(earliest[1]))) == []


def commit_later(file: Path, since: datetime, microseconds: int) -> None:
    """Change a log file so that the transactions that were committed after a time appear as committed later."""
    log = bytearray(file.read_bytes())
    at = log_protocol.FIRST_POSITION
    while at < len(log):
        (length,) = struct.unpack_from("<I", log, at + 9)
        if log[at + 4] == log_protocol.GTID:
            time_at = at + log_protocol.HEADER_BYTES + 42
            when = int.from_bytes(log[time_at : time_at + 7], "little")
            if when > since.timestamp() * 1_000_000:
                log[time_at : time_at + 7] = (when + microseconds).to_bytes(7, "little")
                checksum = zlib.crc32(log[at : at + length - log_protocol.CHECKSUM_BYTES])
                struct.pack_into("<I", log, at + length - log_protocol.CHECKSUM_BYTES, checksum)
        at += length
    file.write_bytes(log)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "statement", "what"),
    [
        (
            "SET GLOBAL replica_preserve_commit_order = OFF",
            "INSERT INTO d.other VALUES (50, 1)",
            "preserve_commit_order",
        ),
        ("DO 0", "INSERT INTO d.other VALUES (50, 1)", ""),
    ],
)
def test_a_server_that_was_a_replica_since_is_held_to_a_replicas_rules(
    server: MysqlServer, setting: str, statement: str, what: str
) -> None:
    """A promoted server no longer reports that it was a replica."""
    source = MysqlSource(settings(server))
    server.query(setting)
    moment = now(server)
    plan = [TablePlan(TableName("d", "t"), "watermark", "")]
    source.check_past(moment, plan, StepOptions())
    _apply(server, statement)
    if what:
        with pytest.raises(PreflightError, match=what):
            source.check_past(moment, plan, StepOptions())
        with pytest.raises(PreflightError, match=what):
            source.record_past(moment, plan, StepOptions())
    else:
        source.check_past(moment, plan, StepOptions())


def _apply(server: MysqlServer, statement: str) -> None:
    """As a replica does: with the GTID of another server."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_next = '11111111-2222-3333-4444-555555555555:1'")
        cursor.execute(statement)
        cursor.execute("SET gtid_next = 'AUTOMATIC'")
