"""Fixtures of merged tables of several sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.mysql_server import MysqlServer
from tests.consistency.fleet import Fleet, MakeFleet


@contextmanager
def schema_on(server: MysqlServer, schema: str) -> Iterator[MysqlServer]:
    server.query(f"CREATE DATABASE {schema}")
    yield server
    server.query(f"DROP DATABASE {schema}")


@pytest.fixture
def fleet(
    mysql: MysqlServer, mysql_oracle: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path
) -> Iterator[MakeFleet]:
    """Creates shards on two MySQL servers, ``eu`` and ``us``."""
    with schema_on(mysql_oracle, schema):
        yield lambda **merging: Fleet({"eu": mysql, "us": mysql_oracle}, spark, schema, tmp_path, **merging)
