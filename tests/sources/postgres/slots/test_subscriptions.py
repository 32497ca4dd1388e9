"""A source that is itself a subscriber: what its workers apply is in a copy completely, or not at all.

Workers show less about themselves than sessions do: a worker that commits may seem idle, or idle in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_cdc.errors import LockNotGranted
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import waits
from harness.postgres_server import PostgresServer
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.soon import soon
from tests.sources.postgres.backends import wait_for
from tests.sources.postgres.log.reading import settings as settings_of

PARALLEL_SINCE = 16
WORKER = "backend_type LIKE 'logical replication%worker'"
SEEN = "SET synchronous_commit = local; SELECT n FROM stock WHERE id = 1"

Publisher = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[] if one == VERSIONS[-1] else pytest.mark.long) for one in VERSIONS],
)
def subscriber(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """It sends large transactions in parts, so that its subscribers apply them while they are still open."""
    with primary_of(request.param, logical_decoding_work_mem="64kB") as server:
        server.query("CREATE TABLE stock (id int PRIMARY KEY, n int, note text)")
        server.query("CREATE DATABASE shop")
        server.query("CREATE TABLE stock (id int PRIMARY KEY, n int, note text)", database="shop")
        server.query("CREATE PUBLICATION stock FOR TABLE stock", database="shop")
        server.query("SELECT pg_create_logical_replication_slot('stock', 'pgoutput', false, true)", database="shop")
        streaming = "parallel" if request.param >= PARALLEL_SINCE else "on"
        server.query(
            f"CREATE SUBSCRIPTION stock CONNECTION 'host={server.host} port={server.port} user=postgres dbname=shop' "
            f"PUBLICATION stock WITH (create_slot = false, two_phase = true, streaming = {streaming}, "
            "synchronous_commit = on, copy_data = false)"
        )
        soon(lambda: server.query("SELECT subtwophasestate FROM pg_subscription"), [("e",)])
        yield server
        server.query("ALTER SUBSCRIPTION stock DISABLE")
        server.query("ALTER SUBSCRIPTION stock SET (slot_name = NONE)")
        server.query("DROP SUBSCRIPTION stock")


@pytest.fixture
def publisher(subscriber: PostgresServer) -> Iterator[Publisher]:
    """A session that writes what the subscriber applies. It waits for no standby itself."""
    with subscriber.connect(database="shop", options="-c synchronous_commit=local") as connection:
        connection.execute("DELETE FROM stock")
        connection.execute("INSERT INTO stock VALUES (1, 0)")
        soon(lambda: subscriber.query("SELECT id, n FROM stock"), [(1, 0)])
        yield connection
        subscriber.set_standbys("")


def settle(server: PostgresServer, seconds: float) -> None:
    settings = settings_of(server, "postgres")
    with session(settings) as connection:
        waits.wait_until_visible(settings, connection, seconds)


def prepare(server: PostgresServer, publisher: Publisher) -> None:
    publisher.execute("BEGIN; UPDATE stock SET n = 7 WHERE id = 1")
    publisher.execute("PREPARE TRANSACTION 'both'")
    soon(lambda: server.query("SELECT count(*) FROM pg_prepared_xacts WHERE database = 'postgres'"), [(1,)])


def begin_large(server: PostgresServer, publisher: Publisher) -> None:
    publisher.execute("BEGIN; UPDATE stock SET n = 7 WHERE id = 1")
    publisher.execute("INSERT INTO stock SELECT i, i, repeat('x', 100) FROM generate_series(2, 20000) i")
    wait_for(server, f"{WORKER} AND backend_xid IS NOT NULL AND wait_event = 'applytransaction'")


@contextmanager
def committing(server: PostgresServer, publisher: Publisher, statement: str) -> Iterator[None]:
    """While the block runs, the commit is in the subscriber's log, and no session sees it."""
    server.set_standbys("nobody")
    publisher.execute(statement.encode())
    wait_for(server, f"{WORKER} AND wait_event = 'SyncRep'")
    assert server.query(SEEN) == [(0,)], "the commit is visible: the test provokes nothing"
    yield
    server.set_standbys("")


Begin = Callable[[PostgresServer, Publisher], None]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(prepare, "COMMIT PREPARED 'both'", id="prepared"),
        pytest.param(begin_large, "COMMIT", id="in-parallel"),
    ],
)
def test_a_commit_of_a_subscription_is_waited_for_until_it_can_be_seen_and_no_longer(
    begin: Begin, end: str, subscriber: PostgresServer, publisher: Publisher
) -> None:
    version = int(subscriber.query("SHOW server_version_num")[0][0])
    if begin is begin_large and version < 10_000 * PARALLEL_SINCE:
        pytest.skip("this server's subscriptions apply a transaction only once it has committed")
    begin(subscriber, publisher)
    # Transactions that have not begun to commit may take any time.
    settle(subscriber, 30)
    with committing(subscriber, publisher, end), pytest.raises(LockNotGranted):
        settle(subscriber, 0.5)
    settle(subscriber, 30)
    assert subscriber.query(SEEN) == [(7,)]
