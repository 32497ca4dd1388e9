"""The oracle of random histories: PostgreSQL's own recovery of what the module's ``primary`` has logged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away


@pytest.fixture(scope="module")
def recovery(primary: PostgresServer) -> Iterator[PostgresRecovery]:
    with (
        throw_away("cdc-recovery-") as directory,
        PostgresRecovery(primary, directory) as recovered,
    ):
        yield recovered
