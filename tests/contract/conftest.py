"""Fixtures of the contract tests: a new database of each kind, and runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.contract.begun import RUN_ID, Begin, Begun
from tests.contract.databases import Database, MysqlDatabase, PostgresDatabase
from tests.servers import throw_away_mysql, throw_away_postgres


@pytest.fixture(scope="session", params=["mysql", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of database. A third kind of source is one more here, and one more class in ``databases``."""
    return str(request.param)


@pytest.fixture
def db(kind: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database on the server that all tests share."""
    server = request.getfixturevalue(kind)
    made: MysqlDatabase | PostgresDatabase
    if kind == "mysql":
        made = MysqlDatabase(server, request.getfixturevalue("schema"))
    else:
        made = PostgresDatabase(server, request.getfixturevalue("database"))
    with made.account(), closing(made):
        yield made


@pytest.fixture
def begin(db: Database) -> Iterator[Begin]:
    """Makes runs on tables of ``db``; they end with the test."""
    runs: list[Begun] = []

    def start(*tables: str, consistency: str = "auto", unrepresentable: str = "error", run_id: str = RUN_ID) -> Begun:
        runs.append(Begun(db, *tables, consistency=consistency, unrepresentable=unrepresentable, run_id=run_id))
        return runs[-1]

    yield start
    for run in runs:
        run.release()


@pytest.fixture(scope="session")
def second_server(kind: str) -> Iterator[Database]:
    """A database on another server of the same kind, whose log a test may throw away."""
    made: MysqlDatabase | PostgresDatabase
    if kind == "mysql":
        with throw_away_mysql() as mysql:
            mysql.query("CREATE DATABASE second")
            made = MysqlDatabase(mysql, "second")
            with made.account():
                yield made
    else:
        with throw_away_postgres() as postgres:
            made = PostgresDatabase(postgres, "postgres")
            with made.account():
                yield made
