"""All commits are found in the log, whatever is between them, and whatever their times are."""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from tests.sources.postgres.standing import Kept


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
