"""Waits until sessions of a server reach a state, and runs statements that wait for a standby."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness.postgres_server import PostgresServer
from tests.soon import SECONDS


def wait_for(server: PostgresServer, condition: str) -> None:
    """Wait for a session of which ``condition`` is true, on the columns of pg_stat_activity."""
    deadline = time.monotonic() + SECONDS
    while not server.query(f"SELECT 1 FROM pg_stat_activity WHERE {condition}"):
        assert time.monotonic() < deadline, f"no session with {condition}"
        time.sleep(0.01)


@contextmanager
def background(server: PostgresServer) -> Iterator[ThreadPoolExecutor]:
    """Threads for statements that may wait for a missing standby, until the block ends."""
    with ThreadPoolExecutor(2) as pool:
        try:
            yield pool
        finally:
            server.set_standbys("")
