"""Preflight must find everything that would make a copy wrong, all at once, each with a hint that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymysql
import pytest

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.errors import PreflightError, Problem, TableUnreadable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.driver import is_of_table, statement_error
from airflow_provider_cdc.sources.planning.survey import survey
from harness.mysql_server import MysqlServer
from tests.servers import throw_away_mysql
from tests.sources.mysql.simulated_server import SimulatedServer

SHOP = """
CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT);
CREATE TABLE shop.lines (order_id INT, line INT, PRIMARY KEY (order_id, line));
CREATE TABLE shop.visits (at DATETIME, page TEXT);
CREATE TABLE other.t (id INT PRIMARY KEY);
"""


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    """A server for these tests only, which change its settings and restore them."""
    with throw_away_mysql({"partial_revokes": "ON"}) as started:
        run(started, "CREATE DATABASE shop; CREATE DATABASE other;" + SHOP)
        yield started


@pytest.fixture
def user(server: MysqlServer) -> Iterator[str]:
    run(server, "CREATE USER `co``py`@`%`")
    yield "co`py"
    run(server, "DROP USER `co``py`@`%`")


def run(server: MysqlServer, statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in filter(str.strip, statements.split(";")):
            cursor.execute(statement)


def source(server: MysqlServer, user: str = "root") -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", server.host, server.port, user))


def problems(server: MysqlServer, *patterns: str, consistency: str = "auto", user: str = "root") -> list[Problem]:
    found: list[Problem] = []
    try:
        source(server, user).preflight(patterns, TableOptions(consistency))
    except PreflightError as error:
        found += error.problems
    assert all(problem.where and problem.what and problem.hint for problem in found)
    return found


@contextmanager
def having(server: MysqlServer, statements: str, undo: str) -> Iterator[None]:
    run(server, statements)
    try:
        yield
    finally:
        run(server, undo)


class TestPlan:
    def test_auto_picks_per_table_and_says_why(self, server: MysqlServer) -> None:
        plans = {str(plan.table): plan for plan in source(server).preflight(["shop.*", "other.t"])}
        assert {name: plan.consistency for name, plan in plans.items()} == {
            "shop.lines": "watermark",
            "shop.orders": "watermark",
            "shop.visits": "lock",
            "other.t": "watermark",
        }
        assert "PRIMARY (order_id, line)" in plans["shop.lines"].reason
        assert "no key" in plans["shop.visits"].reason
        for plan in plans.values():
            assert decode(TablePlan, encode(plan), "") == plan

    def test_lock_is_for_every_table(self, server: MysqlServer) -> None:
        plans = source(server).preflight(["shop.*"], TableOptions("lock"))
        assert {plan.consistency for plan in plans} == {"lock"}

    def test_watermark_needs_keys(self, server: MysqlServer) -> None:
        (problem,) = problems(server, "shop.*", consistency="watermark")
        assert problem.where == "shop.visits"
        assert "ADD PRIMARY KEY" in problem.hint

    def test_every_problem_is_reported_at_once(self, server: MysqlServer) -> None:
        with having(server, "SET GLOBAL binlog_row_image = MINIMAL", "SET GLOBAL binlog_row_image = FULL"):
            found = problems(server, "shop.visits", "shop.no", "nothing.*", "x", consistency="watermark")
        assert [problem.where for problem in found] == [
            "shop.no",
            "nothing.*",
            "'x'",
            "binlog_row_image",
            "shop.visits",
        ]


class TestTablesThatTheServerCannotRead:
    @pytest.mark.slow
    def test_each_is_named_and_the_others_are_copied(self, server: MysqlServer) -> None:
        names = ["gone.disc", "gone.missing", "gone.part"]
        tables = "; ".join(
            f"CREATE TABLE {name} (id INT PRIMARY KEY){how}; INSERT INTO {name} VALUES (1), (2)"
            for name, how in [*dict.fromkeys(names, "").items(), ("gone.whole", " PARTITION BY HASH (id) PARTITIONS 2")]
        )
        with having(server, f"CREATE DATABASE gone; {tables}", "DROP DATABASE gone"):
            run(server, "ALTER TABLE gone.disc DISCARD TABLESPACE; ALTER TABLE gone.part DISCARD TABLESPACE")
            server.stop()
            (server.data / "gone" / "missing.ibd").unlink()
            server.restart()
            found = problems(server, "gone.*")
            assert {(problem.table, problem.where) for problem in found} == {(name, name) for name in names}
            assert {number for problem in found for number in re.findall(r"error (\d+)", problem.what)} == {
                "1812",
                "1814",
            }
            skipping = survey(source(server), ["gone.*"], TableOptions(), "skip")
            assert [str(plan.table) for plan in skipping.plans] == ["gone.whole"]
            assert {*skipping.skipped} == {*names}

    @pytest.mark.parametrize("number", [1021, 1037, 1114, 3, 1205, 1213, 3024, 2013, 1226, 1142])
    def test_an_error_of_the_server_or_of_the_session_is_not_taken_for_one_of_the_table(self, number: int) -> None:
        error = pymysql.OperationalError(number, "x")
        assert not is_of_table(error)
        assert is_of_table(pymysql.OperationalError(1814, "x"))
        assert not isinstance(statement_error("t", error), TableUnreadable)


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "good"),
        [
            ("binlog_format = STATEMENT", "ROW"),
            ("binlog_format = MIXED", "ROW"),
            ("binlog_row_image = MINIMAL", "FULL"),
            ("binlog_row_image = NOBLOB", "FULL"),
            ("binlog_order_commits = OFF", "ON"),
            ("binlog_error_action = IGNORE_ERROR", "ABORT_SERVER"),
        ],
    )
    def test_that_are_wrong_and_their_hint(self, setting: str, good: str, server: MysqlServer) -> None:
        name, _, _ = setting.partition(" ")
        with having(server, f"SET GLOBAL {setting}", f"SET GLOBAL {name} = {good}; RESET PERSIST"):
            (problem,) = problems(server, "shop.orders")
            assert problem.where == name
            run(server, problem.hint)
            assert problems(server, "shop.orders") == []

    def test_of_gtids(self, server: MysqlServer) -> None:
        down = (
            "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = OFF_PERMISSIVE; SET GLOBAL gtid_mode = OFF;"
        )
        up = "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; "
        with having(
            server,
            down + "SET GLOBAL enforce_gtid_consistency = OFF",
            up + "SET GLOBAL gtid_mode = ON_PERMISSIVE; SET GLOBAL gtid_mode = ON",
        ):
            found = problems(server, "shop.orders")
        assert [problem.where for problem in found] == ["gtid_mode", "enforce_gtid_consistency"]

    def test_that_only_count_on_a_replica(self, server: MysqlServer) -> None:
        with having(
            server,
            "SET GLOBAL replica_preserve_commit_order = OFF",
            "RESET REPLICA ALL; SET GLOBAL replica_preserve_commit_order = ON",
        ):
            assert problems(server, "shop.orders") == []
            run(server, "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'r'")
            (problem,) = problems(server, "shop.orders")
        assert problem.where == "replica_preserve_commit_order"

    @pytest.mark.slow
    def test_without_a_log(self, mysql_factory: Callable[[dict[str, str | None]], MysqlServer]) -> None:
        server = mysql_factory({"skip_log_bin": None})
        run(server, "CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY)")
        assert "log_bin" in [problem.where for problem in problems(server, "shop.t")]

    def test_of_a_server_that_may_skip_damaged_rows(self, server: MysqlServer) -> None:
        """A server that was started so writes nothing: its answer alone is that of one."""
        with SimulatedServer(server, "8.4.3", {"innodb_force_recovery": "1"}) as started:
            settings = ConnectionSettings("mysql", started.host, started.port, "root", tls={"mode": "disabled"})
            (problem,) = MysqlSource(settings).check_server()
        assert problem.hint == "start the server with innodb_force_recovery = 0"

    @pytest.mark.slow
    def test_that_are_fixed_at_start(self, mysql_factory: Callable[[dict[str, str | None]], MysqlServer]) -> None:
        server = mysql_factory(
            {"log_replica_updates": "OFF", "innodb_native_foreign_keys": "ON", "binlog_ignore_db": "dull"}
        )
        run(server, "CREATE DATABASE shop; CREATE DATABASE dull; CREATE TABLE dull.t (id INT PRIMARY KEY)")
        run(server, CASCADES)
        run(server, "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'r'")
        found = problems(server, "shop.*", "dull.t", consistency="watermark")
        assert [problem.where for problem in found] == [
            "log_replica_updates",
            "shop.child",
            "shop.orphan",
            "schema dull",
        ]
        assert "changes of shop.parent also change rows of this table" in found[1].what
        assert "innodb_native_foreign_keys=ON" in found[1].what

    @pytest.mark.slow
    @pytest.mark.parametrize(("option", "names"), [("binlog_ignore_db", "dull"), ("binlog_do_db", "shop")])
    def test_that_leave_out_what_is_done_from_another_schema(
        self, option: str, names: str, mysql_factory: Callable[[dict[str, str | None]], MysqlServer]
    ) -> None:
        server = mysql_factory({option: names})
        run(server, "CREATE DATABASE shop; CREATE DATABASE dull; CREATE TABLE shop.t (id INT PRIMARY KEY)")
        run(server, "USE shop; CREATE TABLE shop.u (id INT PRIMARY KEY); INSERT INTO shop.u VALUES (1)")
        before = server.query("SELECT @@gtid_executed")
        run(server, "USE dull; TRUNCATE TABLE shop.u")
        assert server.query("SELECT @@gtid_executed") == before, "it was logged"
        (problem,) = problems(server, "shop.*")
        assert problem.where == option
        assert f"is {names}: " in problem.what

    def test_of_how_long_the_log_is_kept(self, server: MysqlServer) -> None:
        with having(
            server,
            "SET GLOBAL binlog_expire_logs_seconds = 60",
            "RESET PERSIST; SET GLOBAL binlog_expire_logs_seconds = 99999, binlog_expire_logs_auto_purge = 1",
        ):
            (problem,) = problems(server, "shop.orders")
            assert problem.where == "binlog_expire_logs_seconds"
            run(server, problem.hint)
            assert problems(server, "shop.orders") == []
            run(server, "SET GLOBAL binlog_expire_logs_seconds = 60; SET GLOBAL binlog_expire_logs_auto_purge = OFF")
            assert problems(server, "shop.orders") == []


CASCADES = """
CREATE TABLE shop.parent (id INT PRIMARY KEY);
CREATE TABLE shop.child (id INT PRIMARY KEY, p INT,
    CONSTRAINT fk_child FOREIGN KEY (p) REFERENCES shop.parent (id) ON DELETE CASCADE);
CREATE TABLE shop.orphan (id INT PRIMARY KEY, p INT,
    CONSTRAINT fk_orphan FOREIGN KEY (p) REFERENCES shop.parent (id) ON UPDATE SET NULL);
CREATE TABLE shop.strict (id INT PRIMARY KEY, p INT,
    CONSTRAINT fk_strict FOREIGN KEY (p) REFERENCES shop.parent (id) ON DELETE RESTRICT);
"""
NO_CASCADES = "DROP TABLE shop.child, shop.orphan, shop.strict, shop.parent"


class TestTables:
    def test_cascades_that_the_server_logs_are_fine(self, server: MysqlServer) -> None:
        with having(server, CASCADES, NO_CASCADES):
            assert problems(server, "shop.*") == []

    def test_cascades_on_a_replica_may_not_be_logged(self, server: MysqlServer) -> None:
        replica = "; CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'r'"
        with having(server, CASCADES + replica, NO_CASCADES + "; RESET REPLICA ALL"):
            found = problems(server, "shop.child", "shop.orphan", "shop.strict", consistency="watermark")
            assert [problem.where for problem in found] == ["shop.child", "shop.orphan"]
            plans = source(server).preflight(["shop.child", "shop.strict"])
            assert [plan.consistency for plan in plans] == ["lock", "watermark"]

    @pytest.mark.parametrize("consistency", ["auto", "lock"])
    def test_engines_without_transactions(self, consistency: str, server: MysqlServer) -> None:
        with having(server, "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE = MyISAM", "DROP TABLE shop.t"):
            (problem,) = problems(server, "shop.t", consistency=consistency)
            assert (problem.where, "MyISAM" in problem.what) == ("shop.t", True)
            run(server, problem.hint.partition(",")[0])
            assert problems(server, "shop.t", consistency=consistency) == []

    @pytest.mark.parametrize(
        "column",
        [
            "d DECIMAL(39, 0)",
            "t ENUM('y', x'ff') CHARACTER SET utf8mb3",
            "e ENUM('y', x'a6d9') CHARACTER SET gbk",
            "k ENUM('y', '') NOT NULL UNIQUE",
            "v DECIMAL(9, 2) AS (id / 3)",
        ],
    )
    def test_columns_that_cannot_be_copied(self, column: str, server: MysqlServer) -> None:
        key = "" if "UNIQUE" in column else ", PRIMARY KEY (id)"
        with having(server, f"CREATE TABLE shop.t (id INT, {column}{key})", "DROP TABLE shop.t"):
            (problem,) = problems(server, "shop.t")
        assert problem.where == f"shop.t.{column[0]}"
        assert ("leave the column out with `Table.columns`" in problem.hint) == ("UNIQUE" not in column)

    def test_text_of_any_character_set(self, server: MysqlServer) -> None:
        charsets = [
            name for (name,) in server.query("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
        ]
        columns = [
            f"c_{name} CHAR(9) CHARACTER SET {name}, e_{name} ENUM('a') CHARACTER SET {name}"
            for name in charsets
            if name != "binary"
        ]
        assert len(columns) > 39
        with having(server, f"CREATE TABLE shop.t (id INT PRIMARY KEY, {', '.join(columns)})", "DROP TABLE shop.t"):
            assert problems(server, "shop.t") == []

    def test_odd_names(self, server: MysqlServer) -> None:
        with having(server, "CREATE TABLE shop.`a.%s?``` (`i%s?``` INT PRIMARY KEY)", "DROP TABLE shop.`a.%s?```"):
            (plan,) = source(server).preflight(["shop.a.%s?`"])
        assert plan.table.name == "a.%s?`"


class TestPrivileges:
    NEEDED = "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO `co``py`@`%`;"

    def hints_that_fix(self, server: MysqlServer, user: str, *patterns: str, consistency: str = "auto") -> list[str]:
        """The hints, after checking that they are all that was missing."""
        hints = [problem.hint for problem in problems(server, *patterns, consistency=consistency, user=user)]
        for hint in hints:
            run(server, hint)
        assert problems(server, *patterns, consistency=consistency, user=user) == []
        return hints

    def test_of_the_log(self, server: MysqlServer, user: str) -> None:
        run(server, "GRANT SELECT ON shop.* TO `co``py`@`%`")
        assert self.hints_that_fix(server, user, "shop.orders") == [
            "GRANT REPLICATION CLIENT ON *.* TO `co``py`@`%`",
            "GRANT REPLICATION SLAVE ON *.* TO `co``py`@`%`",
        ]

    @pytest.mark.parametrize("grant", ["SELECT ON *.*", "SELECT ON shop.*", "SELECT ON shop.orders", "ALL ON shop.*"])
    def test_to_read_granted_anywhere(self, grant: str, server: MysqlServer, user: str) -> None:
        run(server, self.NEEDED + f"GRANT {grant} TO `co``py`@`%`")
        assert problems(server, "shop.orders", user=user) == []

    def test_to_read_a_table_that_is_visible_only(self, server: MysqlServer, user: str) -> None:
        run(server, self.NEEDED + "GRANT INSERT ON shop.orders TO `co``py`@`%`")
        assert self.hints_that_fix(server, user, "shop.orders") == ["GRANT SELECT ON `shop`.`orders` TO `co``py`@`%`"]

    def test_to_read_some_columns_only(self, server: MysqlServer, user: str) -> None:
        run(server, self.NEEDED + "GRANT SELECT (id, note) ON shop.orders TO `co``py`@`%`")
        assert self.hints_that_fix(server, user, "shop.orders") == ["GRANT SELECT ON `shop`.`orders` TO `co``py`@`%`"]

    def test_to_read_that_come_with_a_role(self, server: MysqlServer, user: str) -> None:
        run(server, "CREATE ROLE reader; GRANT SELECT, LOCK TABLES ON shop.* TO reader; GRANT reader TO `co``py`@`%`")
        with having(server, self.NEEDED, "DROP ROLE reader"):
            assert problems(server, "shop.orders", user=user)
            run(server, "SET DEFAULT ROLE reader TO `co``py`@`%`")
            assert problems(server, "shop.*", user=user) == []

    def test_to_read_that_were_revoked_in_part(self, server: MysqlServer, user: str) -> None:
        run(server, self.NEEDED + "GRANT SELECT, LOCK TABLES ON *.* TO `co``py`@`%`")
        run(server, "REVOKE LOCK TABLES ON shop.* FROM `co``py`@`%`")
        assert problems(server, "other.t", consistency="lock", user=user) == []
        assert self.hints_that_fix(server, user, "shop.visits") == ["GRANT LOCK TABLES ON `shop`.* TO `co``py`@`%`"]

    def test_to_lock_are_needed_only_where_a_lock_is_taken(self, server: MysqlServer, user: str) -> None:
        run(server, self.NEEDED + "GRANT SELECT ON *.* TO `co``py`@`%`")
        assert problems(server, "shop.orders", "shop.lines", "other.t", user=user) == []
        assert self.hints_that_fix(server, user, "shop.*", "other.t", consistency="lock") == [
            "GRANT LOCK TABLES ON `other`.* TO `co``py`@`%`",
            "GRANT LOCK TABLES ON `shop`.* TO `co``py`@`%`",
        ]

    def test_with_wildcards_in_the_schema(self, mysql: MysqlServer) -> None:
        run(mysql, "CREATE DATABASE w_ld; CREATE DATABASE wild; CREATE USER w")
        undo = "DROP DATABASE w_ld; DROP DATABASE wild; DROP USER w"
        with having(mysql, "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO w", undo):
            run(
                mysql,
                "CREATE TABLE w_ld.t (c INT); CREATE TABLE wild.t (c INT); GRANT SELECT, LOCK TABLES ON `w\\_%`.* TO w",
            )
            assert problems(mysql, "w_ld.t", user="w") == []
            assert problems(mysql, "wild.t", user="w")


def test_filters_of_a_server_without_a_performance_schema_are_unknown(
    mysql_factory: Callable[[dict[str, str | None]], MysqlServer],
) -> None:
    """Its tables of filters are empty, whatever the server leaves out as a replica."""
    server = mysql_factory({"performance_schema": "OFF"})
    settings = ConnectionSettings("mysql", server.host, server.port, "root", tls={"mode": "disabled"})
    text = MysqlSource(settings).after_failover(StepOptions(refresh="auto"))
    assert "the next run reads the tables in full" in text
    assert "start the server with performance_schema=ON" in text
