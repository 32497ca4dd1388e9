"""A run must not bring down the server, whatever the log has: PostgreSQL 18 and its output plugin test_decoding.

If a transaction with a savepoint is rolled back and does not fit into logical_decoding_work_mem, PostgreSQL 18 reports
the end of the savepoint to the output plugin, although it never reported its beginning. test_decoding ends with a
segmentation fault, and then the server ends all sessions. The server of this test has that plugin.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Evolution, TableName
from harness.errors import HarnessError
from harness.postgres_contrib import MAJOR, contrib_options
from tests.conftest import PostgresFactory
from tests.sources.postgres.standing import RUN_ID, Kept


@pytest.fixture
def kept(postgres_factory: PostgresFactory) -> Iterator[Kept]:
    try:
        options = contrib_options()
    except HarnessError as error:
        pytest.skip(str(error))
    found = Kept(postgres_factory({**options, "logical_decoding_work_mem": "64kB"}, MAJOR), "postgres")
    found.run(
        "CREATE TABLE stock (id int PRIMARY KEY, v int, w int, x int); ALTER TABLE stock REPLICA IDENTITY FULL",
        "INSERT INTO stock SELECT i, 0, 0, 0 FROM generate_series(1, 10) i",
        "CREATE TABLE app (i int, v text)",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_create_logical_replication_slot('p', 'test_decoding')",
    )
    yield found
    found.forget()


@pytest.mark.slow
def test_the_server_survives_a_rolled_back_savepoint(kept: Kept) -> None:
    kept.keep("stock")
    copy = kept.record_at(kept.here(), "stock")
    kept.source.release(RUN_ID)
    kept.source.note_copies(kept.options, {"lake": {"public.stock": copy.position}}, "")
    started = kept.ask("SELECT pg_postmaster_start_time()")
    with kept.server.connect() as witness:
        kept.run(
            "UPDATE stock SET v = 1",
            "BEGIN; SAVEPOINT a; INSERT INTO app SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i; ROLLBACK",
            "CHECKPOINT",
        )
        when, end = kept.clock(), kept.here()
        kept.run("UPDATE stock SET v = 2")
        kept.check(when, "stock")
        assert Lsn.expect(copy.position) < Lsn.parse(kept.position_of(when, "stock")) <= Lsn.parse(end)
        # Columns that were dropped since the copy.
        kept.run("ALTER TABLE stock DROP w", "ALTER TABLE stock DROP x")
        kept.keep("stock")
        evolutions: dict[TableName, Evolution] = {}
        refused = kept.source.refusals_since(
            copy.identity, copy.position, copy.tables, None, kept.options, evolutions=evolutions
        )
        assert not refused
        assert evolutions.keys() == {table.name for table in copy.tables}
        assert witness.execute("SELECT 1").fetchall() == [(1,)]
    assert kept.ask("SELECT pg_postmaster_start_time()") == started
