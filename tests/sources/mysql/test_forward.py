"""What keeps a copy from being rolled forward is told beforehand, table by table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.options import LockPolicy, StepOptions
from airflow_provider_cdc.core.plan import InitialPoint
from airflow_provider_cdc.errors import ExactnessError, SourceReplaced
from airflow_provider_cdc.sources.mysql.log import codes
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

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

    def refused(self, to: GtidSet | None = None) -> dict[str, str]:
        found = self.source.refusals_since(
            self.point.identity, self.point.position, self.point.tables, to, StepOptions()
        )
        return {table.name: why for table, why in found.items()}


@pytest.fixture
def since(mysql: MysqlServer, schema: str) -> Since:
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
    earlier = GtidSet.parse(since.point.position)
    since.do("UPDATE a SET v = 5")
    assert since.refused(to=earlier) == {}
    source = since.source
    since.point = source.record_initial(source.preflight([f"{since.schema}.*"]), LOCK)
    assert set(since.refused(to=earlier).values()) == {"the copy is of a later position"}


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


def test_a_copy_of_another_server(since: Since) -> None:
    since.point = InitialPoint(
        since.point.position,
        {**since.point.identity, "server_uuid": "3e11fa47-71ca-11e1-9e33-c80aa9429562"},
        since.point.tables,
        0.0,
    )
    with pytest.raises(SourceReplaced):
        since.refused()


def test_the_window_ends_where_the_position_does(since: Since) -> None:
    since.do("UPDATE a SET v = 6")
    position = str(since.server.query("SELECT @@gtid_executed")[0][0]).replace("\n", "")
    since.do("UPDATE a SET v = 7", "TRUNCATE a")
    segments = since.source.segments_between(since.point.position, position, since.point.identity, {})
    file, end = since.server.query("SHOW BINARY LOG STATUS")[0][:2]
    assert segments[-1].name == file
    assert codes.FIRST_POSITION < (segments[-1].stop or 0) < int(end)
