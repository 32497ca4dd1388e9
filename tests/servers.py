"""Servers of their own for tests that break, restart or configure them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away

SMALL = {"innodb_redo_log_capacity": "32M", "innodb_buffer_pool_size": "64M"}
"""Their data are a few rows, and lie in memory."""


@contextmanager
def throw_away_mysql(options: Mapping[str, str | None] | None = None) -> Iterator[MysqlServer]:
    """A server whose data go with it."""
    with (
        throw_away("cdc-mysql-") as directory,
        MysqlServer.start(directory, options={**SMALL, **(options or {})}) as server,
    ):
        yield server
        # A shutdown would take longer than the start, for data that nobody wants.
        server.kill()


@contextmanager
def throw_away_postgres(
    options: Mapping[str, str | None] | None = None, version: int | None = None
) -> Iterator[PostgresServer]:
    """A server whose data go with it, of the given major version."""
    with (
        throw_away("cdc-postgres-") as directory,
        PostgresServer.start(directory, options=options, version=version) as server,
    ):
        yield server
