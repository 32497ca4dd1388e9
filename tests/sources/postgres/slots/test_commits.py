"""All commits are found in the log, whatever is between them, and whatever their times are."""

from __future__ import annotations

from contextlib import closing

import pytest

from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from tests.sources.postgres.standing import Kept


@pytest.mark.long
def test_a_value_too_long_for_a_regular_expression(kept: Kept) -> None:
    """The server prints it, because it streams no transaction that is large only before the start."""
    kept.keep("stock")
    kept.run("ALTER TABLE stock ADD b bytea")
    with kept.server.connect(database=kept.database, autocommit=False) as writer:
        writer.execute("UPDATE stock SET b = decode(repeat('ab', 135000000), 'hex') WHERE id = 1")
        kept.here()
        kept.run(f"SELECT pg_replication_slot_advance('{kept.name}', pg_current_wal_flush_lsn())")
        start = kept.slot.confirmed
        ((xid,),) = writer.execute("SELECT pg_current_xact_id()::text")
        writer.commit()
    kept.here()
    assert start is not None
    with closing(commits_since(kept.source.settings, kept.name, start)) as commits:
        assert xid in [commit.xid for commit in commits]


def test_any_commit_time_of_a_replication_origin(kept: Kept) -> None:
    kept.keep("stock")
    start, now = kept.slot.confirmed, kept.clock().timestamp() * 1e6
    kept.run("SELECT pg_replication_origin_create('elsewhere')")
    for at in ("infinity", "294276-12-31", "4713-01-01 BC", "-infinity"):
        kept.run(
            "SELECT pg_replication_origin_session_setup('elsewhere'); BEGIN; "
            f"SELECT pg_replication_origin_xact_setup('0/1', '{at}'); UPDATE stock SET v = 1; COMMIT"
        )
    kept.run("SELECT pg_replication_origin_drop('elsewhere')")
    assert start is not None
    with closing(commits_since(kept.source.settings, kept.name, start)) as commits:
        centuries = [round((commit.at - now) / (36_525 * 86_400e6)) for commit in commits]
    assert [century for century in centuries if century] == [80, 80, -20, -20]
