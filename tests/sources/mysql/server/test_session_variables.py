"""Every session variable is pinned or known to be harmless, and no value of any variable changes what a run reads."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader
from airflow_provider_cdc.sources.mysql.server.session import HARMLESS, PINNED, connect, query, session, value
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.sources.lying_server import Peer, lying_server
from tests.sources.mysql.lying_mysql import MysqlPeer, remembered, settings_for
from tests.sources.mysql.server.hostile_shop import ROWS, TABLES, Shop, copy_under_random_values, opened
from tests.sources.mysql.server.hostile_variables import hostile_values, one_of_each, session_variables, set_globally

LEFT_BY_INIT_CONNECT = (
    "SET SESSION transaction_read_only = 0",
    "CREATE TEMPORARY TABLE shop.parts (id INT PRIMARY KEY)",
    "CREATE TEMPORARY TABLE shop.keyless (a INT)",
    "SET timestamp = 1, insert_id = 7, last_insert_id = 7, @replica_uuid = 'x', completion_type = CHAIN",
    "SET NAMES latin1",
    "USE other",
    "SET autocommit = 0",
    "INSERT INTO shop.parts VALUES (1)",
)
"""The server runs the contents of that variable in each session, before the session can do anything."""


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    small = {"innodb_redo_log_capacity": "8M", "innodb_buffer_pool_size": "32M"}
    with (
        tempfile.TemporaryDirectory(prefix="cdc-mysql-") as directory,
        MysqlServer.start(Path(directory), options=small) as started,
    ):
        yield started
        started.kill()


@pytest.fixture(scope="module")
def shop(server: MysqlServer) -> Iterator[Shop]:
    with opened(server) as made:
        yield made


@pytest.fixture(scope="module")
def values(shop: Shop) -> dict[str, Sequence[str]]:
    return hostile_values(shop.root)


@pytest.fixture
def set_globals(shop: Shop) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Sets global values, which are the defaults again after the test."""
    changed: dict[str, str] = {}

    def set_them(chosen: Mapping[str, str]) -> None:
        changed.update(dict.fromkeys(chosen, "DEFAULT"))
        set_globally(shop.root, chosen)

    yield set_them
    set_globally(shop.root, changed)


@pytest.fixture(scope="module")
def expected(shop: Shop) -> dict[str, Counter[bytes]]:
    """The rows under the server's defaults."""
    rows = shop.copied()
    assert {name: counts.total() for name, counts in rows.items()} == dict.fromkeys(TABLES, ROWS)
    return rows


@pytest.mark.slow
def test_every_session_variable_is_pinned_or_known_to_be_harmless(shop: Shop) -> None:
    found = session_variables(shop.root)
    assert len(found) > 150, "the server does not tell all of them"
    unknown = sorted(found.keys() - PINNED.keys() - HARMLESS.keys())
    assert unknown == [], "say in session_variables what other values of these would do"
    assert PINNED.keys() & HARMLESS.keys() == set()


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 1])
def test_no_values_of_all_variables_together_change_what_is_read(
    turn: int,
    shop: Shop,
    expected: dict[str, Counter[bytes]],
    values: dict[str, Sequence[str]],
    set_globals: Callable[[Mapping[str, str]], None],
) -> None:
    assert max(map(len, values.values())) == 2, "more turns are needed"
    set_globals(one_of_each(values, turn))
    assert shop.copied() == expected


@pytest.mark.parametrize(
    ("name", "hostile"),
    [("completion_type", "'CHAIN'"), ("completion_type", "'RELEASE'"), ("sql_quote_show_create", "OFF")],
)
def test_preflight_of_partitions_under_values_that_it_once_failed_with(
    name: str, hostile: str, shop: Shop, set_globals: Callable[[Mapping[str, str]], None]
) -> None:
    set_globals({name: hostile})
    (plan,) = MysqlSource(shop.db.settings).preflight(["shop.parts"])
    assert plan.consistency == "watermark"


def test_nothing_that_init_connect_did_is_left(
    shop: Shop,
    server: MysqlServer,
    expected: dict[str, Counter[bytes]],
    set_globals: Callable[[Mapping[str, str]], None],
) -> None:
    set_globals({"init_connect": "'" + "; ".join(LEFT_BY_INIT_CONNECT).replace("'", "''") + "'"})
    with server.connect("reader") as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.parts")
        assert cursor.fetchall() == ((1,),), "init_connect does not do what it should"
    assert shop.copied() == expected
    with session(shop.db.settings) as connection:
        assert value(connection, "@@timestamp") > 1_000_000
        assert query(connection, "SELECT @replica_uuid, LAST_INSERT_ID()") == [(None, 0)]


@pytest.mark.parametrize("expression", ["j", "CONCAT(t, t)", "LEFT(REPEAT(t, 3), 1)"])
def test_no_value_is_left_out_because_max_allowed_packet_is_less(
    expression: str, shop: Shop, set_globals: Callable[[Mapping[str, str]], None]
) -> None:
    """The server sends NULL or an empty text, and warns. Other warnings stop nothing."""
    shop.execute(
        f"CREATE TABLE other.long (id INT PRIMARY KEY, t TEXT, j JSON, v LONGTEXT AS ({expression}), "
        "w INT AS (CAST(t AS SIGNED)))",
        "SET sql_mode = ''",
        "INSERT INTO other.long (id, t, j) VALUES (1, REPEAT('x', 900), JSON_ARRAY(REPEAT('x', 1500))), (2, 'y', '1')",
        "SET sql_mode = DEFAULT",
    )
    try:
        assert _read(shop, "long") == 2
        set_globals({"max_allowed_packet": "1024"})
        with pytest.raises(ConfigurationError, match=r"max_allowed_packet \(1024\)"):
            _read(shop, "long")
    finally:
        shop.execute("DROP TABLE other.long")


@pytest.mark.parametrize("beside", ["j JSON", "v LONGTEXT AS (CONCAT(t, t))", "v INT AS (id + 1)"])
def test_more_warnings_than_the_server_lists_hide_none_that_a_value_was_left_out(
    beside: str, shop: Shop, set_globals: Callable[[Mapping[str, str]], None]
) -> None:
    shop.execute(
        f"CREATE TABLE other.many (id INT PRIMARY KEY, t TEXT, w INT AS (CAST(t AS SIGNED)), {beside})",
        "SET sql_mode = ''",
        "INSERT INTO other.many (id, t) VALUES (1, 'x'), (2, 'y')",
        "SET sql_mode = DEFAULT",
    )
    set_globals({"max_error_count": "1"})
    try:
        if beside == "v INT AS (id + 1)":
            assert _read(shop, "many") == 2
        else:
            with pytest.raises(ConfigurationError, match="had 2 warnings, of which the server lists 1"):
                _read(shop, "many")
    finally:
        shop.execute("DROP TABLE other.many")


def _read(shop: Shop, name: str) -> int:
    """The number of rows of a table in ``other``, read as a run does."""
    with session(shop.db.settings, reading=True) as connection:
        (table,) = read_tables(connection, [TableName("other", name)])
        with StatementReader(connection, table) as reader:
            return sum(batch.num_rows for batch in reader.read("", ()))


@pytest.mark.parametrize("failing", ["SELEKT 1", "INSERT INTO other.missing VALUES (1)", "KILL CONNECTION_ID()"])
def test_an_init_connect_that_fails_is_named(
    failing: str, shop: Shop, set_globals: Callable[[Mapping[str, str]], None]
) -> None:
    set_globals({"init_connect": f"'{failing}'"})
    with pytest.raises(SourceUnavailable, match="init_connect command failed") as refused:
        connect(shop.db.settings)
    assert "CONNECTION_ADMIN" in refused.value.hint
    assert "host" not in refused.value.hint


class TestASessionSaysWhatItReads:
    def test_whatever_the_server_sets_for_all(
        self, shop: Shop, values: dict[str, Sequence[str]], set_globals: Callable[[Mapping[str, str]], None]
    ) -> None:
        set_globals(one_of_each(values, 0) | {"max_execution_time": "1"})
        with session(shop.db.settings) as connection:
            for name, pin in PINNED.items():
                assert str(value(connection, pin.read or f"@@SESSION.{name}")) == pin.expected
            assert value(connection, "SLEEP(0.05)") == 0, "cut by max_execution_time"
            assert value(connection, "'☂'") == "☂"
            assert value(connection, "LENGTH('\\\\')") == 1

    def test_through_a_proxy_that_answers_set_itself(self, tmp_path: Path) -> None:
        def script(peer: Peer) -> None:
            server = MysqlPeer(peer)
            server.greet()
            remembered(server)
            server.answer_opening({"sql_select_limit": "2"})
            peer.wait_for_end()

        with lying_server(script, tmp_path) as liar:
            with pytest.raises(ConfigurationError, match="sql_select_limit is 2, not 18446744073709551615") as refused:
                connect(settings_for(liar.port))
            assert "connection pooler" in refused.value.hint

    def test_through_a_proxy_that_resets_no_session(self, tmp_path: Path) -> None:
        def script(peer: Peer) -> None:
            server = MysqlPeer(peer)
            server.greet()
            remembered(server)
            server.hear()
            server.say(b"\xff\x17\x04#08S01Unknown command")
            peer.wait_for_end()

        with lying_server(script, tmp_path) as liar:
            with pytest.raises(ConfigurationError, match="cannot reset a session") as refused:
                connect(settings_for(liar.port))
            assert "connect to the server directly" in refused.value.hint


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_whole_copies_under_values_of_many_variables(
    seed: int, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    copy_under_random_values(seed, shop, spark, tmp_path.as_uri())
