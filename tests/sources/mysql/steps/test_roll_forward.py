"""The reasons why a copy cannot be rolled forward are reported beforehand, for each table."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ExactnessError, LogGone, SchemaChanged, SourceReplaced, TransientError
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from airflow_provider_cdc.sources.mysql.tables.identity import identity_warnings, read_identities
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from tests.soon import soon

LOCK = LockPolicy()
TABLES = ("a", "b", "j", "k")


@dataclass
class Since:
    """A moment at which copies are exact, and what is done after it."""

    server: MysqlServer
    schema: str
    source: MysqlSource
    point: InitialPoint

    def do(self, *statements: str) -> None:
        with self.server.connect(database=self.schema) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def refused(self, to: Position | None = None) -> dict[str, str]:
        found = self.source.refusals_since(
            self.point.identity, self.point.position, self.point.tables, to, StepOptions()
        )
        return {table.name: why for table, why in found.items()}


@pytest.fixture
def since(mysql: MysqlServer, schema: str) -> Since:
    return make_since(mysql, schema)


def make_since(mysql: MysqlServer, schema: str) -> Since:
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT, s VARCHAR(9))")
        cursor.execute("CREATE TABLE b (id INT PRIMARY KEY, v INT)")
        cursor.execute("CREATE TABLE j (id INT PRIMARY KEY, v JSON)")
        cursor.execute("CREATE TABLE k (v INT)")
        cursor.execute("INSERT INTO a VALUES (1, 1, 'x')")
    source = MysqlSource(settings_of(mysql))
    return Since(mysql, schema, source, source.record_initial(source.preflight([f"{schema}.*"]), LOCK))


@pytest.mark.parametrize(
    ("statements", "tables", "message"),
    [
        pytest.param(["UPDATE a SET v = 2", "INSERT INTO k VALUES (1)", "DELETE FROM b"], "", "", id="rows"),
        pytest.param(["CREATE INDEX i ON a (v)", "CREATE TABLE c (id INT PRIMARY KEY)"], "", "", id="harmless"),
        pytest.param(["TRUNCATE a"], "a", "TRUNCATE", id="truncate"),
        pytest.param(["DELETE FROM a", "TRUNCATE k", "TRUNCATE j"], "jk", "TRUNCATE", id="two tables"),
        pytest.param(["ALTER TABLE a ADD n INT"], "a", "columns have changed", id="a column"),
        pytest.param(["ALTER TABLE a ADD n INT", "ALTER TABLE a DROP n"], "a", "ALTER TABLE", id="there and back"),
        pytest.param(["ALTER TABLE a MODIFY s VARCHAR(9) COLLATE utf8mb4_bin"], "a", "columns", id="a collation"),
        pytest.param(["RENAME TABLE a TO x, b TO a, x TO b"], "ab", "columns|RENAME", id="swapped"),
        pytest.param(
            ["DROP TABLE b, k", "CREATE TABLE b (id INT PRIMARY KEY, v INT)", "CREATE TABLE k (v INT)"],
            "bk",
            "DROP TABLE",
            id="two dropped by one statement",
        ),
        pytest.param(
            ["SET SESSION binlog_format = STATEMENT", "UPDATE b SET v = 3 WHERE id = 4"], "abjk", "UPDATE", id="as text"
        ),
    ],
)
def test_tables_that_the_log_cannot_roll_forward(
    since: Since, statements: Sequence[str], tables: str, message: str
) -> None:
    since.do(*statements)
    found = since.refused()
    assert sorted(found) == sorted(tables)
    for why in found.values():
        assert re.search(message, why), why


def test_what_happened_before_the_copy_does_not_count(since: Since) -> None:
    since.do("TRUNCATE a", "ALTER TABLE b ADD n INT")
    source = since.source
    since.point = source.record_initial(source.preflight([f"{since.schema}.*"]), LOCK)
    assert since.refused() == {}


def test_a_copy_of_a_later_position_than_is_asked_for(since: Since) -> None:
    earlier = since.point.position
    since.do("UPDATE a SET v = 5")
    assert since.refused(to=earlier) == {}
    source = since.source
    since.point = source.record_initial(source.preflight([f"{since.schema}.*"]), LOCK)
    assert set(since.refused(to=earlier).values()) == {"the copy is at a later position"}


@pytest.fixture
def partial_json(mysql: MysqlServer) -> Iterator[None]:
    mysql.query("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
    yield
    mysql.query("SET GLOBAL binlog_row_value_options = ''")


def test_differences_of_documents_cannot_be_applied(since: Since, partial_json: None) -> None:
    (said,) = since.refused().items()
    assert said[0] == "j"
    assert "SET PERSIST binlog_row_value_options = ''" in said[1]


def test_settings_that_were_touched_since_the_copy(since: Since) -> None:
    since.server.query("SET GLOBAL binlog_order_commits = OFF")
    since.server.query("SET GLOBAL binlog_order_commits = ON")
    with pytest.raises(ExactnessError, match="binlog_order_commits was set"):
        since.refused()


@pytest.mark.slow
def test_a_copy_of_another_server(mysql_factory: Callable[[dict[str, str | None]], MysqlServer]) -> None:
    """The transactions are recognized by their commit times, which the mark of the position has."""
    # Other tests leave tagged GTIDs on the shared server. Then the mark has no commit times.
    server = mysql_factory({})
    server.query("CREATE DATABASE shop")
    since = make_since(server, "shop")
    fields = since.point.identity.fields()
    *place, commits = fields["history_mark"].split(" ")
    gtids = [one.partition("@")[0] for one in commits.split(",")]
    position, tables = since.point.position, since.point.tables
    for mark, error, match in (
        ([commits], None, ""),
        ([",".join(f"{gtid}@1" for gtid in gtids)], SourceReplaced, "is another transaction there"),
        ([], LogGone, "no record of the commit times"),
    ):
        facts = {"server_uuid": "3e11fa47-71ca-11e1-9e33-c80aa9429562", "history_mark": " ".join((*place, *mark))}
        since.point = InitialPoint(position, Facts(fields | facts), tables, 0.0)
        with pytest.raises(error, match=match) if error else nullcontext():
            assert since.refused() == {}


def _dumped(table: str) -> list[str]:
    """What mysqldump --set-gtid-purged=COMMENTED writes."""
    return [
        "SET sql_log_bin = 0",
        f"DROP TABLE IF EXISTS `{table}`",
        f"CREATE TABLE `{table}` (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO `{table}` VALUES (1, 10), (3, 30)",
        "SET sql_log_bin = 1",
    ]


def _unlogged(*statements: str) -> list[str]:
    return ["SET sql_log_bin = 0", *statements, "SET sql_log_bin = 1"]


REPLACED = {
    "dümped": _dumped("dümped"),
    "altered, then dumped": [
        "SET timestamp = UNIX_TIMESTAMP() - 50",
        "ALTER TABLE `altered, then dumped` ADD INDEX (v)",
        "SET timestamp = DEFAULT",
        *_dumped("altered, then dumped"),
    ],
    "swapped": _unlogged("CREATE TABLE new LIKE swapped", "RENAME TABLE swapped TO old, new TO swapped"),
    "altered unlogged": _unlogged("ALTER TABLE `altered unlogged` ADD INDEX (v)"),
}
REPLACED_AS_INNODB_SHOWS = {
    "dumped, then altered": [
        *_dumped("dumped, then altered"),
        "ALTER TABLE `dumped, then altered` ADD INDEX (v)",
    ],
    "tr#p#üncated": _unlogged("TRUNCATE `tr#p#üncated`"),
    "con": _unlogged("TRUNCATE con"),
    "exchanged-1": _unlogged(
        "CREATE TABLE part LIKE plain", "ALTER TABLE `exchanged-1` EXCHANGE PARTITION `Ö` WITH TABLE part"
    ),
    "imported": [],
}
SAME = {
    "indexed": [
        "SET time_zone = '+05:30'",
        "ALTER TABLE indexed ADD INDEX i (v)",
        "DROP INDEX i ON indexed",
        "SET time_zone = DEFAULT",
    ],
    "described": ["ALTER TABLE described COMMENT = 'x'", "ALTER TABLE described ALTER v SET DEFAULT 5"],
    "copied": ["ALTER TABLE copied ADD INDEX (v), ALGORITHM=COPY"],
    "optimized": ["OPTIMIZE TABLE optimized, plain", "ALTER TABLE optimized COMMENT = 'y'"],
    "clustered": ["DROP INDEX z ON clustered"],
    "looked at": ["ANALYZE TABLE `looked at`", "CHECK TABLE `looked at`", "FLUSH TABLES `looked at`"],
    "moved": _unlogged("RENAME TABLE moved TO away", "RENAME TABLE away TO moved"),
    "changed": ["UPDATE changed SET v = 7"],
}


@pytest.mark.slow
@pytest.mark.parametrize("sees_innodb", [True, False])
def test_tables_that_were_replaced_behind_the_back_of_the_log(
    sees_innodb: bool, mysql: MysqlServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {
        "exchanged-1": "(id INT PRIMARY KEY, v INT) PARTITION BY LIST (id) "
        "(PARTITION `Ö` VALUES IN (1), PARTITION q VALUES IN (2))",
        "clustered": "(id INT NOT NULL, v INT NOT NULL, UNIQUE KEY z (v), UNIQUE KEY k (id))",
    }
    settings = replace(settings_of(mysql), user=f"u_{schema[-8:]}", password="")
    statements = [
        f"CREATE USER {settings.user}",
        f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {settings.user}",
        f"GRANT SELECT, LOCK TABLES ON {schema}.* TO {settings.user}",
        # Long ago: what is made now is made in another second.
        "SET timestamp = UNIX_TIMESTAMP() - 100",
        *(
            f"CREATE TABLE `{name}` {columns.get(name, '(id INT PRIMARY KEY, v INT)')}"
            for name in (*REPLACED, *REPLACED_AS_INNODB_SHOWS, *SAME, "plain")
        ),
    ]
    if sees_innodb:
        statements.append(f"GRANT PROCESS ON *.* TO {settings.user}")
    source = MysqlSource(settings)
    since = Since(mysql, schema, source, InitialPoint(GtidSet(), Facts({}), (), 0.0))
    since.do(*statements)
    names = [*REPLACED, *REPLACED_AS_INNODB_SHOWS, *SAME]
    with caplog.at_level(logging.WARNING):
        plans = source.preflight([f"{schema}.{name}" for name in names])
    assert ("GRANT PROCESS ON *.* TO" in caplog.text) is not sees_innodb
    since.point = point = source.record_initial(plans, LOCK)
    assert since.refused() == {}
    for done in (*REPLACED.values(), *REPLACED_AS_INNODB_SHOWS.values(), *SAME.values()):
        since.do(*done)
    _import_tablespace(since, "imported")

    expected = {*REPLACED, *(REPLACED_AS_INNODB_SHOWS if sees_innodb else ())}
    refused = since.refused()
    assert refused.keys() == expected, refused
    assert "is not in the log" in refused["dümped"]
    run = source.of_run(point.identity, point.position)
    with pytest.raises(SchemaChanged, match="sql_log_bin") as stopped:
        run.check_tables(point.tables)
    assert stopped.value.where in {f"{schema}.{name}" for name in expected}
    assert "trigger a new run" in stopped.value.hint
    with pytest.raises(SchemaChanged, match="sql_log_bin") as stopped:
        source.check_replaced(point.identity, point.tables, point.identity, point.tables)
    assert "clear the task `preflight`" in stopped.value.hint
    run.check_tables([table for table in point.tables if table.name.name in SAME])
    # On another server, and of copies that older versions made, nothing can be compared.
    source.check_replaced(
        Facts({**point.identity.fields(), "server_uuid": "another"}), point.tables, point.identity, point.tables
    )
    since.point = replace(point, tables=tuple(replace(table, details={}) for table in point.tables))
    assert since.refused() == {}


def test_a_server_that_copies_tables_for_every_index(since: Since) -> None:
    """With ``old_alter_table``, which the log does not show."""
    since.server.query("SET GLOBAL old_alter_table = ON")
    try:
        since.do("CREATE INDEX i ON a (v)")
        assert since.refused() == {}
    finally:
        since.server.query("SET GLOBAL old_alter_table = OFF")


@pytest.mark.slow
def test_ddl_after_the_position_hides_no_replacement_before_it(since: Since) -> None:
    """Between preflight and the position a table is replaced, and then it is emptied with a trace in the log."""
    base, source = since.point, since.source
    since.do(*_unlogged("TRUNCATE a", "INSERT INTO a VALUES (5, 5, 'y')"))
    point = source.record_initial(source.preflight([f"{since.schema}.*"]), LOCK)
    since.do("TRUNCATE a", "TRUNCATE b")
    with pytest.raises(SchemaChanged, match="TABLE_ID") as stopped:
        source.check_replaced(base.identity, base.tables, point.identity, point.tables)
    assert stopped.value.where == f"{since.schema}.a"
    # At a past position, the identities of the tables are unknown.
    source.check_replaced(base.identity, base.tables, point.identity, [])


@contextmanager
def _waiting(since: Since, statement: str, holding: str) -> Iterator[None]:
    """While another session waits in the middle of ``statement`` for one that reads the table ``holding``."""
    server = since.server
    with server.connect(database=since.schema) as reading, reading.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {holding}")
        done = pool.submit(since.do, statement)
        try:
            state = "SELECT 1 FROM performance_schema.processlist WHERE INFO = %s AND STATE LIKE '%%metadata lock'"
            soon(lambda: len(server.query(state, [statement])), 1)
            yield
        finally:
            cursor.execute("COMMIT")
            done.result()


@pytest.mark.slow
def test_an_optimize_is_not_taken_for_a_replacement_before_it_is_logged(since: Since) -> None:
    """It is logged when it has done all of its tables, and what it did to the first can be seen before."""
    run = since.source.of_run(since.point.identity, since.point.position)
    with _waiting(since, "OPTIMIZE TABLE a, b", holding="b"):
        with pytest.raises(TransientError, match="OPTIMIZE TABLE is running"):
            run.check_tables(since.point.tables)
        assert "OPTIMIZE TABLE is running" in since.refused()["a"]
    run.check_tables(since.point.tables)
    assert since.refused() == {}
    # At another second than the OPTIMIZE: that one would explain it.
    forced = _unlogged("SET timestamp = UNIX_TIMESTAMP() + 60", "ALTER TABLE a FORCE")
    since.do("CREATE TABLE c (id INT) PARTITION BY KEY (id)", *forced)
    with (
        _waiting(since, "ALTER TABLE c OPTIMIZE PARTITION p0", holding="c"),
        pytest.raises(TransientError, match="OPTIMIZE TABLE is running"),
    ):
        run.check_tables(since.point.tables)


def test_identities_do_not_wait_for_ddl_of_other_tables(since: Since) -> None:
    """To show INNODB_TABLES, the server waits for sessions that alter any table, or create one from a query."""
    since.do("CREATE TABLE other (id INT PRIMARY KEY)", "CREATE TABLE `ü#p#x` LIKE a")
    names = [TableName(since.schema, name) for name in ("a", "b", "ü#p#x")]
    with session(since.source.settings) as connection:
        before = read_identities(connection, names)
        since.do(*_unlogged("TRUNCATE a", "TRUNCATE `ü#p#x`"))
        with _waiting(since, "ALTER TABLE other ADD v INT", holding="other"):
            now = read_identities(connection, names)
            assert identity_warnings(connection) == []
    assert [before[name].differs(now[name]) for name in names] == [True, False, True]


def _import_tablespace(since: Since, table: str) -> None:
    folder = since.server.data / since.schema
    since.do("SET sql_log_bin = 0", f"CREATE TABLE twin LIKE {table}", "INSERT INTO twin VALUES (9, 9)")
    with since.server.connect(database=since.schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"ALTER TABLE {table} DISCARD TABLESPACE")
        cursor.execute("FLUSH TABLES twin FOR EXPORT")
        for kind in ("ibd", "cfg"):
            shutil.copy(folder / f"twin.{kind}", folder / f"{table}.{kind}")
        cursor.execute("UNLOCK TABLES")
        cursor.execute(f"ALTER TABLE {table} IMPORT TABLESPACE")


def test_the_window_ends_where_the_position_does(since: Since) -> None:
    since.do("UPDATE a SET v = 6")
    position = GtidSet.parse(since.server.query("SELECT @@gtid_executed")[0][0])
    since.do("UPDATE a SET v = 7", "TRUNCATE a")
    start = Start(since.point.position, since.point.identity)
    segments = since.source.segments(start, AT_START, since.source.place_of(position))
    file, end = since.server.query("SHOW BINARY LOG STATUS")[0][:2]
    assert segments[-1].name == file
    assert log_protocol.FIRST_POSITION < (segments[-1].stop or 0) < int(end)
