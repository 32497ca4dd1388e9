"""The oracle of random histories, PostgreSQL's own recovery of what the module's ``primary`` has logged; and nights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from harness.throw_away import throw_away
from tests.conftest import PostgresFactory
from tests.consistency.postgres.nights import Nights
from tests.consistency.postgres.servers import ENDS


@pytest.fixture(scope="module")
def recovery(primary: PostgresServer) -> Iterator[PostgresRecovery]:
    with (
        throw_away("cdc-recovery-") as directory,
        PostgresRecovery(primary, directory) as recovered,
    ):
        yield recovered


@pytest.fixture
def nights(postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path) -> Nights:
    return Nights(postgres_factory(None, ENDS[-1]), spark, tmp_path)
