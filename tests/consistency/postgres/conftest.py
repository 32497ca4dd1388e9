"""The oracle of random histories: PostgreSQL's own recovery of what the module's ``primary`` has logged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def recovery(primary: PostgresServer) -> Iterator[PostgresRecovery]:
    with (
        tempfile.TemporaryDirectory(prefix="cdc-recovery-") as directory,
        PostgresRecovery(primary, Path(directory)) as recovered,
    ):
        yield recovered
