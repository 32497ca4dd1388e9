"""What the tests of the log begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.postgres_server import PostgresServer
from tests.sources.postgres.log.reading import Follow, LogReading, Run


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
    """Runs statements, each in a transaction of its own, on one connection each time."""

    def execute(*statements: str) -> None:
        with postgres.connect(database=database) as connection:
            for statement in statements:
                connection.execute(statement)

    return execute
