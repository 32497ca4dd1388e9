"""Feeds that end at a schema change and begin anew. Plain Python replays all other feeds, which gives the next copy."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ChangesMissing
from airflow_provider_cdc.lake import read_changes
from harness.pipeline import Pipeline
from tests.consistency.acting import DURING, act_during
from tests.consistency.postgres.nights import FULL, Nights
from tests.consistency.postgres.test_changes import changes_of, copy_of, lake
from tests.consistency.postgres.test_changes import nights as nights
from tests.consistency.replaying import Row, replayed, rows_of

KEYS = {"emptied": ["id"], "widened": ["id"], "granted": ["id"], "steady": ["id"], "bag": list[str]()}


def begun(nights: Nights) -> Pipeline:
    run = nights.night("auto", changes=True, on_feed_gap="begin_anew")
    run.record()
    return run


def publish(nights: Nights, run: Pipeline, before: dict[str, Counter[Row]], gaps: set[str]) -> dict[str, Counter[Row]]:
    """Publish, and compare the copies with the server, and with the replayed feeds of the tables without a gap."""
    found = run.finish()
    assert set(found["feed_gaps"]) == {f"public.{table}" for table in gaps}
    copies = {table: rows_of(copy_of(lake(nights), f"public.{table}")) for table in KEYS}
    for table, key in KEYS.items():
        assert copies[table] == Counter(tuple(row) for row in nights.server.query(f"SELECT * FROM {table}")), table
        if before and table not in gaps:
            changes = changes_of(lake(nights), f"public.{table}")
            assert replayed(before[table], key, changes) == copies[table], table
    return copies


def refused(nights: Nights, table: str, since: str) -> str:
    with pytest.raises(ChangesMissing) as refusal:
        read_changes(lake(nights), f"public.{table}", since)
    return str(refusal.value)


def write(nights: Nights, number: int) -> None:
    for name in ("emptied", "widened", "granted", "steady"):
        nights.do(
            f"INSERT INTO {name} (id, v) VALUES ({number}, 0), ({number + 1}, 1)",
            f"UPDATE {name} SET v = v + 1 WHERE id = {number}",
            f"DELETE FROM {name} WHERE id = {number + 1}",
        )
    nights.do(
        f"INSERT INTO bag VALUES ({number}), ({number})", "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)"
    )


def begin(nights: Nights) -> tuple[dict[str, Counter[Row]], str]:
    """Publish the first copies. Return them, and their position."""
    for name in KEYS:
        nights.do(f"CREATE TABLE {name} ({'id int PRIMARY KEY, v int' if KEYS[name] else 'v int'})", FULL.format(name))
    write(nights, 100)
    run = begun(nights)
    return publish(nights, run, {}, set()), run.found["consolidate"]["position"]


@pytest.mark.slow
def test_feeds_end_at_schema_changes_and_begin_anew(nights: Nights) -> None:
    copies, first = begin(nights)
    write(nights, 200)
    nights.do("TRUNCATE emptied", "ALTER TABLE widened ADD n int DEFAULT 7", "GRANT SELECT ON granted TO PUBLIC")
    write(nights, 300)
    run = begun(nights)
    assert {plan.table.name for plan in run.plans if plan.base} == {*KEYS} - {"emptied"}
    publish(nights, run, copies, {"emptied", "widened"})
    second = run.found["consolidate"]["position"]
    for table, what in (("emptied", "rewritten or truncated"), ("widened", "ADD n")):
        for part in (f"public.{table}", f"anew at {second}", f"at {first}", what, "its position"):
            assert part in refused(nights, table, first), (table, part)


@pytest.mark.long
def test_feeds_of_tables_that_are_altered_when_a_run_moves_begin_anew(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run moves, because a table that is read is altered. A table with a feed is altered, too."""
    copies, first = begin(nights)
    nights.do("TRUNCATE emptied")
    write(nights, 400)
    run = begun(nights)
    alter = (
        "ALTER TABLE emptied ADD m int DEFAULT 8",
        "ALTER TABLE steady ADD m int DEFAULT 9",
        "INSERT INTO steady VALUES (900, 1, 1)",
        "UPDATE widened SET v = 900 WHERE id = 100",
        "INSERT INTO bag VALUES (900)",
    )
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], lambda: nights.do(*alter), patch)
        copies = publish(nights, run, copies, {"emptied", "steady"})
    assert len(Run.load(run.run).manifest.restarts) >= 1
    moved = run.found["consolidate"]["position"]
    for part in ("public.steady", f"anew at {moved}", f"at {first}"):
        assert part in refused(nights, "steady", first), part
    write(nights, 500)
    publish(nights, begun(nights), copies, set())
    for table in ("emptied", "steady"):
        assert changes_of(lake(nights), f"public.{table}", moved).num_rows == 4
