"""The servers of the benches. The filled tables are kept between benches, but the servers do not keep running."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.cache import cache_directory
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

OPTIONS = {
    # The benches measure the copy, not this machine's disk.
    "innodb_buffer_pool_size": "2G",
    "innodb_doublewrite": "OFF",
    "innodb_redo_log_capacity": "2G",
    "binlog_row_metadata": "FULL",
    "max_binlog_size": "1G",
}

POSTGRES_OPTIONS = {"shared_buffers": "2GB", "max_wal_size": "4GB", "autovacuum": "off"}


def bench_directory() -> Path:
    """Return the folder of the filled tables."""
    return cache_directory() / "bench"


@contextmanager
def bench_server(directory: Path) -> Iterator[MysqlServer]:
    """Start a MySQL server with the data in ``directory`` and an empty binary log. A second bench waits for the
    first."""
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory), MysqlServer.start(directory / "mysql", options=OPTIONS) as server:
        server.query("RESET BINARY LOGS AND GTIDS")
        # A position without any transaction is rejected, so make one.
        server.query("CREATE DATABASE IF NOT EXISTS bench")
        yield server


@contextmanager
def postgres_bench_server(directory: Path) -> Iterator[PostgresServer]:
    """Start a PostgreSQL server with the data in ``directory``. A second bench waits for the first."""
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory), PostgresServer.start(directory / "postgres", options=POSTGRES_OPTIONS) as server:
        yield server


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        # The kernel releases the lock if this process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def logs_directory(directory: Path) -> Path:
    """Return the folder for the output of the contenders, which shows why one failed."""
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    return logs
