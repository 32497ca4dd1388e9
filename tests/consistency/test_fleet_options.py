"""Options with merged tables of several sources, and merged tables that are left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import PreflightError, UnionRefused
from tests.consistency.fleet import Fleet, FleetWriters, MakeFleet
from tests.consistency.merge_matrix import ACROSS, Case
from tests.consistency.shards import MERGED, TABLES, Row

OTHER = "shop.others"


@pytest.mark.long
@pytest.mark.parametrize("case", ACROSS, ids=lambda case: case.option.replace("`", ""))
def test_each_option_across_sources(
    case: Case, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    if case.kinds[0] == "mysql":
        two = request.getfixturevalue("fleet")()
    else:
        factory = request.getfixturevalue("postgres_factory")
        two = Fleet({"eu": factory(), "us": factory()}, spark, "public", tmp_path)
        identity = "DEFAULT" if case.options.get("consistency") == "again" else "FULL"
        for shards in two.parts.values():
            shards.do(*(f"ALTER TABLE {shards.of(name)} REPLICA IDENTITY {identity}" for name in TABLES))
    if "merging" in case.options:
        us = two.parts["us"]
        us.do(f"ALTER TABLE {us.of('orders_1')} MODIFY v INT NOT NULL FIRST")
        with pytest.raises(UnionRefused, match="us: its columns are in another order than k, tag, v: set"):
            two.night()
    options = case.options_for(two.parts["eu"].schema)
    writers = FleetWriters(two, 5)
    for night in range(2):
        writers.write(30, finish=True)
        if case.refused:
            with pytest.raises(PreflightError, match=case.refused):
                two.begin("eu", **options)
            return
        begun = {source: two.begin(source, "auto" if night else "full", **options) for source in two.parts}
        truth: Counter[Row] = Counter()
        for source, (run, rows) in begun.items():
            if run.plans[0].at_upper:
                run.snapshot()
            for row in rows.elements():
                if (seen := case.seen(row[:4])) is not None:
                    truth[(*seen, source)] += 1
        writers.write(10, finish=True)
        runs = {source: run for source, (run, _) in begun.items()}
        for run in runs.values():
            run.finish()
        result = two.unite(runs, keep=case.options.get("keep", 0))
        assert two.rows(result.published[MERGED]) == truth, f"night {night}"
        assert result.in_order is not any(run.plans[0].at_upper for run in runs.values())
        assert len(two.snapshots()) <= case.options.get("keep", 2)
        assert night == 0 or all(plan.base for run in runs.values() for plan in run.plans)


@pytest.mark.long
def test_a_merged_table_that_is_left_out_leaves_the_others(fleet: MakeFleet) -> None:
    two = fleet()
    eu, us = two.parts.values()
    tables = [eu.of(name) for name in TABLES]
    merging = {"merge": {MERGED: tables[:2], OTHER: tables[2:]}}

    def night() -> dict[str, str]:
        runs = {source: two.begin(source, on_table_error="skip", merging=merging)[0] for source in two.parts}
        for run in runs.values():
            run.finish()
        truth = Counter(
            {(*row, "orders_3", source): 1 for source, one in two.parts.items() for row in one.rows("orders_3")}
        )
        result = two.unite(runs)
        assert two.published(OTHER) == truth
        return result.skipped

    eu.do(f"INSERT INTO {eu.of('orders_1')} (k, tag, v) VALUES (1, 'a', 1)")
    us.do(f"INSERT INTO {us.of('orders_2')} (k, tag, v) VALUES (1, 'a', 2)")
    eu.do(f"INSERT INTO {eu.of('orders_3')} (k, tag, v) VALUES (1, 'a', 3)")
    # A collision of two sources.
    skipped = night()
    assert "(k=1, tag='a') in eu:" in skipped[MERGED]
    # A collision within one source, which leaves out the merged table in its run.
    eu.do(f"INSERT INTO {eu.of('orders_2')} (k, tag, v) VALUES (1, 'a', 2)")
    us.do(f"DELETE FROM {us.of('orders_2')}", f"INSERT INTO {us.of('orders_3')} (k, tag, v) VALUES (2, 'a', 3)")
    skipped = night()
    assert set(skipped) == {MERGED, f"eu:{tables[0]}", f"eu:{tables[1]}"}
    assert "shop.orders: 1 key is in more than one shard at " in skipped[MERGED]
    assert not two.snapshots()
    eu.do(f"DELETE FROM {eu.of('orders_2')}")
    assert night() == {}
    assert two.published() == Counter({(1, "a", 1, "orders_1", "eu"): 1})
