"""What the tests of the log begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.postgres_server import PostgresServer
from tests.sources.postgres.log.reading import Follow, LogReading, Run
from tests.sources.postgres.standing import Kept


@pytest.fixture
def follow(postgres: PostgresServer, database: str) -> Iterator[Follow]:
    """Makes readings of tables of ``database``; their slots end with the test."""
    readings = []

    def start(*names: str, publication: str = "") -> LogReading:
        readings.append(LogReading(postgres, database, *names, publication=publication))
        return readings[-1]

    yield start
    for reading in readings:
        reading.close()


@pytest.fixture
def run(postgres: PostgresServer, database: str) -> Run:
    """Runs statements, each in its own transaction, on one connection per call."""

    def execute(*statements: str) -> None:
        with postgres.connect(database=database) as connection:
            for statement in statements:
                connection.execute(statement)

    return execute


@pytest.fixture
def kept(postgres: PostgresServer, database: str) -> Iterator[Kept]:
    """The past of ``database``, with a table ``stock`` in it; nothing of it is left after the test."""
    found = Kept(postgres, database)
    found.run(
        "CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL;"
        "INSERT INTO stock SELECT i, 0 FROM generate_series(1, 10) i"
    )
    yield found
    found.forget()
