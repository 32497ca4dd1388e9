"""Copies through connections whose passwords expire while a run reads: tokens, and passwords that are changed."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.errors import LoginRefused
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.users_code import own_path
from airflow_provider_cdc.sources.postgres.server.session import session
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from harness.token_gate import MysqlGate, PostgresGate, RdsTokens, TokenGate
from tests.operators.spark.test_step import CONTEXT

TABLES = "orders", "lines", "visits"
ROWS = 3000
OF_DATABASE = "FROM pg_replication_slots WHERE database = %s"
TOKEN_SECONDS = 3.0
"""More than it takes to log in on a busy machine, and less than a run. AWS signs equal tokens within a second."""
ACCESS_KEY, SECRET_KEY = "AKIA0000000000EXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "eu-central-1"


@dataclass
class Shop:
    """Two tables on a server, and the account ``reader``."""

    server: MysqlServer | PostgresServer
    place: str

    def __post_init__(self) -> None:
        if isinstance(self.server, MysqlServer):
            self.server.query("CREATE USER reader@localhost")
            self.server.query("GRANT ALL ON *.* TO reader@localhost")
        else:
            self.server.query("CREATE ROLE reader LOGIN SUPERUSER")
        for table in TABLES:
            self.run(f"CREATE TABLE {self.name(table)} (id INT PRIMARY KEY, n INT)")
            if isinstance(self.server, PostgresServer):
                self.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            for start in range(0, ROWS, 1000):
                values = ", ".join(f"({number}, 0)" for number in range(start, start + 1000))
                self.run(f"INSERT INTO {self.name(table)} VALUES {values}")
            analyze = "ANALYZE TABLE" if isinstance(self.server, MysqlServer) else "VACUUM ANALYZE"
            self.run(f"{analyze} {self.name(table)}")

    def set_password(self, password: str) -> ConnectionSettings:
        """Change the password of the account, and return the settings of a connection with it."""
        account = "USER reader@localhost IDENTIFIED BY" if self.is_mysql else "ROLE reader PASSWORD"
        self.server.query(f"ALTER {account} '{password}'")
        settings = settings_of(self.server, "reader", password)
        return settings if self.is_mysql else replace(settings, database=self.place)

    @property
    def is_mysql(self) -> bool:
        return isinstance(self.server, MysqlServer)

    @property
    def pattern(self) -> str:
        return f"{self.place}.*" if isinstance(self.server, MysqlServer) else "public.*"

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        if isinstance(self.server, MysqlServer):
            return self.server.query(sql)
        return self.server.query(sql, database=self.place)

    def name(self, table: str) -> str:
        return f"{self.place}.{table}" if isinstance(self.server, MysqlServer) else table

    def change(self, table: str, number: int) -> None:
        self.run(f"UPDATE {self.name(table)} SET n = {number} WHERE id % 7 = {number}")
        self.run(f"DELETE FROM {self.name(table)} WHERE id = {100 + number}")
        self.run(f"INSERT INTO {self.name(table)} VALUES ({ROWS + number}, {number})")

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.run(f"SELECT id, n FROM {self.name(table)}"))


@pytest.fixture(params=["mysql", "postgres"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    server = request.getfixturevalue(request.param)
    shop = Shop(server, request.getfixturevalue("schema" if request.param == "mysql" else "database"))
    yield shop
    if request.param == "mysql":
        server.query("DROP USER reader@localhost")
    else:
        server.query("DROP ROLE reader")
        server.query(f"SELECT pg_drop_replication_slot(slot_name) {OF_DATABASE}", [shop.place])


@contextmanager
def gate(shop: Shop, folder: Path, tokens: RdsTokens) -> Iterator[TokenGate]:
    kind = MysqlGate if isinstance(shop.server, MysqlServer) else PostgresGate
    with kind(shop.server.port, folder, tokens) as one:
        tokens.endpoint = f"{one.host}:{one.port}"
        yield one


def connect(monkeypatch: pytest.MonkeyPatch, shop: Shop, one: TokenGate) -> None:
    """Define Airflow's connections: to the gate, and the one with the keys."""
    is_mysql, authority = isinstance(shop.server, MysqlServer), str(one.authority)
    tls = {"ssl": {"ca": authority}} if is_mysql else {"sslmode": "verify-ca", "sslrootcert": authority}
    connection = {
        "conn_type": "mysql" if is_mysql else "postgres",
        "host": one.host,
        "port": one.port,
        "login": "reader",
        "schema": shop.place,
        "extra": {"iam": True, "aws_conn_id": "keys", **tls},
    }
    keys = {"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY, "extra": {"region_name": REGION}}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps(keys))


@pytest.mark.slow
def test_each_session_of_a_run_and_of_the_next_one_logs_in_with_a_token_that_is_valid_then(
    shop: Shop,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tokens = RdsTokens({ACCESS_KEY: SECRET_KEY}, REGION, TOKEN_SECONDS)
    lake = tmp_path / "lake"
    with gate(shop, tmp_path, tokens) as one:
        connect(monkeypatch, shop, one)
        works, said = open_hook("shop").test_connection()
        assert works, (said, tokens.refused, tokens.seen)
        settings = open_hook("shop").settings()
        for night, refresh in enumerate(("full", "changes"), 1):
            run = Pipeline(
                spark,
                settings,
                lake.as_uri(),
                [shop.pattern],
                chunk_rows=1000,
                refresh=refresh,
                standing_slot="" if isinstance(shop.server, MysqlServer) else "night",
                run_id=f"2026010{night}T000000Z-00000000",
            )
            run.record()
            expected = {table: shop.rows(table) for table in TABLES}
            shop.change("orders", night)
            run.snapshot()
            shop.change("lines", night + 2)
            run.extract_delta()
            found = run.consolidate()["published"]
            for name, uri in found.items():
                assert Counter(published(uri)[1]) == expected[name.rpartition(".")[2]], (night, name)
            run.release()
    assert tokens.refused == []
    assert len(tokens.seen) > 2
    kept = [path.read_bytes() for path in lake.rglob("*") if path.is_file()]
    shown = "".join(capfd.readouterr()).encode() + repr((settings, spark.sparkContext.getConf().getAll())).encode()
    for secret in (SECRET_KEY, "X-Amz-Signature", "X-Amz-Credential"):
        assert not any(secret.encode() in text for text in (*kept, shown)), secret


@pytest.mark.slow
def test_session_that_is_opened_later_with_the_parameters_of_another_one_has_its_own_token(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    tokens = RdsTokens({ACCESS_KEY: SECRET_KEY}, REGION, TOKEN_SECONDS)
    with PostgresGate(postgres.port, tmp_path, tokens) as one:
        tokens.endpoint = f"{one.host}:{one.port}"
        settings = ConnectionSettings(
            *("postgres", one.host, one.port, "reader", "", "postgres"),
            tls={"ca": str(one.authority)},
            auth="rds_iam",
            credentials={"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "region": REGION},
        )
        with session(settings) as connection:
            began = int(time.time())
            # The token has expired. AWS signs equal tokens within a second.
            tokens.seen = dict.fromkeys(tokens.seen, -math.inf)
            while int(time.time()) == began:
                time.sleep(0.05)
            assert own_path(connection) == '"$user", public'
    assert tokens.refused == []
    assert len(tokens.seen) == 2


@pytest.mark.slow
def test_password_that_is_changed_during_any_step(
    shop: Shop, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def with_password(password: str) -> Pipeline:
        settings = shop.set_password(password)
        connection = {"conn_type": f"cdc_{settings.kind}", "schema": settings.database, "password": password}
        server = {"host": settings.host, "port": settings.port, "login": settings.user}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection | server))
        return Pipeline(spark, settings, tmp_path.as_uri(), [shop.pattern], chunk_rows=1000, chunk_pause=0.3)

    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    run = with_password("pass-word-0")
    run.record()
    expected = {table: shop.rows(table) for table in TABLES}
    shop.change("orders", 1)
    task: Any = SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=run.run.uri, spark_conn_id="spark")
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(task.execute, CONTEXT)
        # Both executors read a part. The one that is done first begins the last part, for which it opens a session.
        while len({path.parent for path in tmp_path.rglob("*.parquet")}) < 2 and not step.done():
            time.sleep(0.02)
        retry = with_password("pass-word-1")
        # Open sessions go on. The next one is refused, and the task starts its application again.
        step.result(240)
    said = "".join(capfd.readouterr())
    assert said.count("the server refuses this user or password") == said.count("Starts the application again") == 1
    assert "pass-word" not in said
    assert re.search(r"3 tables, .* in . parts?, [1-9]\d* kept", said), said
    shop.change("lines", 2)
    for number, name in enumerate(("extract_delta", "consolidate"), 2):
        late, retry = retry, with_password(f"pass-word-{number}")
        with pytest.raises(LoginRefused, match="the server refuses this user or password") as refused:
            getattr(late, name)()
        assert "see that the connection has the present one, and retry the task" in refused.value.hint
        assert "pass-word" not in str(refused.value)
        getattr(retry, name)()
    for name, uri in retry.found["consolidate"]["published"].items():
        assert Counter(published(uri)[1]) == expected[name.rpartition(".")[2]], name
