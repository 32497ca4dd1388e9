"""Private servers for tests that break, restart or configure them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away
from tests.seeds import SOAK_SEED

SMALL_MYSQL = {
    "innodb_buffer_pool_size": "64M",
    "innodb_doublewrite": "OFF",
    "innodb_log_buffer_size": "1M",
    "innodb_redo_log_capacity": "16M",
    "key_buffer_size": "8",
    "performance_schema_accounts_size": "50",
    "performance_schema_digests_size": "200",
    "performance_schema_error_size": "0",
    "performance_schema_events_statements_history_long_size": "10",
    "performance_schema_hosts_size": "10",
    "performance_schema_users_size": "50",
}
"""Options for servers with a few rows. By default, half of a server's start-up time is spent on memory for buffers and
for statistics that no test reads."""

# An autovacuum launcher that wakes up every second uses as much CPU time as thirty tests. Results must not depend on
# when it runs, so dev/soak runs it often.
QUIET_POSTGRES = {"autovacuum_naptime": "1min"} if SOAK_SEED is None else {}


@contextmanager
def throw_away_mysql(options: Mapping[str, str | None] | None = None) -> Iterator[MysqlServer]:
    """A server whose data are removed when it ends."""
    with (
        throw_away("cdc-mysql-") as directory,
        MysqlServer.start(directory, options={**SMALL_MYSQL, **(options or {})}) as server,
    ):
        yield server
        # A shutdown would take longer than the start, for data that is not needed any more.
        server.kill()


@contextmanager
def throw_away_postgres(
    options: Mapping[str, str | None] | None = None, version: int | None = None
) -> Iterator[PostgresServer]:
    """A server of the given major version, whose data are removed when it ends."""
    with (
        throw_away("cdc-postgres-") as directory,
        PostgresServer.start(directory, options={**QUIET_POSTGRES, **(options or {})}, version=version) as server,
    ):
        yield server
