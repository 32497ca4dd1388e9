"""Several threads read the log for the survey, and its results are still in the order of the log."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log import dump, walk_state
from airflow_provider_cdc.sources.mysql.log import survey as surveys
from airflow_provider_cdc.sources.mysql.log.survey import FILES_AT_ONCE, LogFacts, survey
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, end_of_log, log_files
from airflow_provider_cdc.sources.mysql.server.session import Connection, session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from tests.conftest import MysqlFactory

FILES = 3 * FILES_AT_ONCE


@pytest.fixture
def server(mysql_factory: MysqlFactory) -> MysqlServer:
    server = mysql_factory({})
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY, v LONGTEXT)")
    server.query("FLUSH BINARY LOGS")
    return server


def look(
    server: MysqlServer,
    enough: int = FILES,
    user: str = "",
    first: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> list[tuple[str, str]]:
    """The files that the survey read, in order, and the statements in each of them that would stop a run."""
    settings = settings_of(server, user)
    # As in a run, the survey of the log has its own session meanwhile.
    with session(settings) as connection:
        end, files = end_of_log(settings, connection), log_files(connection)
        tables = read_tables(connection, [TableName("d", "t")])
        begin = LogPlace(list(files)[1], log_protocol.FIRST_POSITION)

        def is_enough(facts: LogFacts) -> bool:
            if len(facts.summaries) < enough:
                return False
            then()
            return True

        first()
        facts = survey(settings, begin, GtidSet.parse(""), tables, end=end, is_enough=is_enough)
    assert facts.stopped is None
    found = {summary.segment.name: "" for summary in facts.summaries}
    for statement in facts.statements:
        found[statement.begins.file] += str(statement.error)
    return list(found.items())


@pytest.mark.slow
def test_files_are_told_in_the_order_of_the_log_whichever_is_read_first(server: MysqlServer) -> None:
    for number in range(FILES):
        if number == 0:
            # This file is still being read when the next ones, which stop at once, are done.
            for key in range(8):
                server.query(f"INSERT INTO d.t VALUES ({key}, REPEAT('x', 8000000))")
        elif number % 2:
            server.query(f"ALTER TABLE d.t ADD COLUMN c{number} INT")
        server.query("FLUSH BINARY LOGS")
    found = look(server)
    names = [name for name, _ in found]
    assert names == sorted(names)
    assert len(names) == FILES
    for number, (name, why) in enumerate(found):
        assert (f"d.t at {name}:" in why) if number % 2 else not why, why


@pytest.mark.slow
def test_whoever_has_seen_enough_reads_no_further(server: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.query("INSERT INTO d.t VALUES (0, 'x')")
    server.query("FLUSH BINARY LOGS")
    for number in range(FILES_AT_ONCE):
        for key in range(8):
            server.query(f"INSERT INTO d.t VALUES ({8 * number + key + 1}, REPEAT('x', 8000000))")
        server.query("FLUSH BINARY LOGS")
    before = sent(server)
    fill = dump.Dump.fill

    def slowly(self: dump.Dump) -> bool:
        # Else they might be through before this thread comes to leave them.
        time.sleep(0.02)
        return fill(self)

    monkeypatch.setattr(dump.Dump, "fill", slowly)
    assert len(look(server, enough=1)) == 1
    deadline = time.monotonic() + 60
    while server.query("SELECT 1 FROM performance_schema.processlist WHERE command LIKE 'Binlog Dump%%'"):
        assert time.monotonic() < deadline, "the server still sends"
        time.sleep(0.1)
    # Those that were begun beside the first one have 192 MB.
    assert sent(server) - before < 150_000_000


@pytest.mark.slow
def test_a_user_who_may_have_few_sessions_looks_through_fewer_files_at_once(server: MysqlServer) -> None:
    for number in range(FILES_AT_ONCE + 2):
        for key in range(3):
            server.query(f"INSERT INTO d.t VALUES ({3 * number + key}, REPEAT('x', 8000000))")
        server.query("FLUSH BINARY LOGS")
    server.query("CREATE USER few@'127.0.0.1' WITH MAX_USER_CONNECTIONS 2")
    server.query("GRANT SELECT, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO few@'127.0.0.1'")
    found = look(server, user="few")
    # The last file has the user.
    assert len(found) == FILES_AT_ONCE + 3
    assert not any(why for _, why in found)
    assert found == sorted(found)


@pytest.mark.long
def test_sessions_that_the_server_is_about_to_end_are_waited_for(
    server: MysqlServer,
) -> None:
    """It counts them until it has noticed that their connections are closed."""
    for number in range(FILES_AT_ONCE - 1):
        server.query(f"INSERT INTO d.t VALUES ({number}, 'x')")
        server.query("FLUSH BINARY LOGS")
    server.query("CREATE USER few@'127.0.0.1' WITH MAX_USER_CONNECTIONS 2")
    server.query("GRANT SELECT, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO few@'127.0.0.1'")

    def ends_late() -> None:
        ending = server.connect("few")
        threading.Timer(1.0, ending.close).start()

    found = look(server, user="few", first=ends_late)
    assert len(found) == FILES_AT_ONCE
    assert not any(why for _, why in found)


@pytest.mark.long
@pytest.mark.parametrize("when", ["it sends the log", "it is asked for it"])
def test_whoever_leaves_does_not_wait_for_a_server_that_says_nothing_any_more(
    server: MysqlServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A task that timed out would otherwise wait for minutes."""
    silent = threading.Event()
    request_log = log_protocol.request_log

    def asked_late(connection: Connection, name: str, start: int) -> None:
        # The first file is looked through by then; and this one is never asked for where the server does not stop.
        if name != first and not silent.wait(30):
            raise AssertionError("the server never fell silent")
        request_log(connection, name, start)

    server.query("FLUSH BINARY LOGS")
    for number in range(FILES_AT_ONCE):
        for key in range(8):
            server.query(f"INSERT INTO d.t VALUES ({8 * number + key}, REPEAT('x', 8000000))")
        server.query("FLUSH BINARY LOGS")
    wakes_up = threading.Timer(60, os.kill, (server.pid, signal.SIGCONT))
    left = 0.0

    def falls_silent() -> None:
        nonlocal left
        os.kill(server.pid, signal.SIGSTOP)
        silent.set()
        wakes_up.start()
        # Until all that it had sent is read.
        time.sleep(5)
        left = time.monotonic()

    first = server.query("SHOW BINARY LOGS")[1][0]
    if when == "it is asked for it":
        monkeypatch.setattr(dump, "request_log", asked_late)
    try:
        look(server, enough=1, then=falls_silent)
        assert time.monotonic() - left < 40
    finally:
        wakes_up.cancel()
        os.kill(server.pid, signal.SIGCONT)


def sent(server: MysqlServer) -> int:
    """Bytes that the server has sent to all sessions."""
    query = "SELECT variable_value FROM performance_schema.global_status WHERE variable_name = 'Bytes_sent'"
    return int(server.query(query)[0][0])


@pytest.mark.slow
def test_who_waits_is_told_how_far_it_is(
    server: MysqlServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(surveys, "EVERY_SECONDS", 0.001)
    for key in range(4):
        server.query(f"INSERT INTO d.t VALUES ({key}, REPEAT('x', 8000000))")
        server.query("FLUSH BINARY LOGS")
    with caplog.at_level(logging.INFO, surveys.__name__):
        look(server)
    told = [record.getMessage() for record in caplog.records if record.name == surveys.__name__]
    assert told
    assert all(" of 30 MiB (" in line for line in told), told
    percent = [int(line.rpartition("(")[2].split()[0]) for line in told]
    assert percent == sorted(percent)
    assert percent[-1] <= 100


@pytest.mark.slow
def test_the_survey_goes_on_and_judges_each_table_by_itself(server: MysqlServer) -> None:
    """Statements and rows at which a run would stop are facts. Of those that a session may log for each row, the first
    and the last are kept."""
    server.query("CREATE TABLE d.u (id INT PRIMARY KEY, v INT)")
    settings = settings_of(server)
    with session(settings) as connection:
        tables = read_tables(connection, [TableName("d", "t"), TableName("d", "u")])
        begin = end_of_log(settings, connection)
    with server.connect(database="d") as writer, writer.cursor() as cursor:
        cursor.execute("INSERT INTO u VALUES (1, 1)")
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        for number in range(surveys.MOST_AS_TEXT + 50):
            cursor.execute(f"UPDATE u SET v = {number}")
        cursor.execute("SET SESSION binlog_format = ROW, binlog_row_image = MINIMAL")
        cursor.execute("UPDATE u SET v = 7")
        cursor.execute("SET SESSION binlog_row_image = FULL")
        cursor.execute("ALTER TABLE u ADD COLUMN w INT")
        for _ in range(3):
            cursor.execute("INSERT INTO u (id) SELECT MAX(id) + 1 FROM (SELECT id FROM u) AS u")
        cursor.execute("OPTIMIZE TABLE t")
        cursor.execute("RENAME TABLE t TO x, u TO t, x TO u")
    facts = survey(settings, begin, GtidSet(), tables, rows=True)
    assert facts.stopped is None
    kinds = [(one.meaning.statement, sorted(name.name for name in one.on)) for one in facts.statements]
    assert kinds[: surveys.MOST_AS_TEXT] == [("UPDATE", ["t", "u"])] * surveys.MOST_AS_TEXT
    assert kinds[surveys.MOST_AS_TEXT :] == [
        ("UPDATE", []),
        ("ALTER TABLE", ["u"]),
        ("OPTIMIZE TABLE", ["t"]),
        ("RENAME TABLE", ["t", "u"]),
    ]
    assert [one.columns is not None for one in facts.statements[-3:]] == [True, False, False]
    assert [one.error is None for one in facts.statements[-3:]] == [False, True, False]
    found = [(rows.code, rows.table.name) for rows in facts.bad_rows]
    assert found == [(walk_state.NOT_WHOLE, "u")] + 2 * [(walk_state.SHAPE, "u")]
    places = [one.begins.position for one in facts.statements]
    assert places == sorted(places)
