"""Copies of views and of the tables that they read have one position, even if a view is refreshed meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.pipeline import Pipeline, published_counts, settings_of
from tests.consistency.postgres.nights import Nights

TABLES = ("orders", "totals", "kept", "visits")
SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(9,2));
CREATE TABLE visits (a int);
INSERT INTO orders SELECT i, i % 7, i FROM generate_series(1, 2000) i;
INSERT INTO visits SELECT i % 5 FROM generate_series(1, 50) i;
CREATE VIEW totals AS SELECT customer, count(*) AS n, sum(amount)::numeric(12,2) AS total FROM orders GROUP BY 1;
CREATE MATERIALIZED VIEW kept AS SELECT * FROM totals;
CREATE UNIQUE INDEX ON kept (customer)
"""


def rows_of(nights: Nights) -> dict[str, Counter[tuple[Any, ...]]]:
    return {name: Counter(nights.server.query(f"SELECT * FROM {name}")) for name in TABLES}


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["auto", "exported"])
def test_views_and_tables_are_copied_at_one_position(
    consistency: str, nights: Nights, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.do(*SETUP.split(";"))
    run = Pipeline(
        spark,
        settings_of(nights.server),
        (tmp_path / "lake").as_uri(),
        [f"public.{name}" for name in TABLES],
        consistency=consistency,
        chunk_rows=200,
    )
    run.record()
    nights.do("UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0", "REFRESH MATERIALIZED VIEW kept")
    nights.do("DELETE FROM orders WHERE id % 10 = 1", "INSERT INTO visits VALUES (9)")
    expected: list[dict[str, Counter[tuple[Any, ...]]]] = []
    bound_view = PostgresSource.bound_view

    def bound(source: Any, tables: Any) -> Any:
        found = bound_view(source, tables)
        expected.append(rows_of(nights))
        nights.do("UPDATE orders SET amount = amount + 100", "INSERT INTO visits VALUES (10)")
        if len(expected) == 1:
            # Its new rows are visible to any snapshot, so this one is given up.
            nights.do("REFRESH MATERIALIZED VIEW kept")
        return found

    monkeypatch.setattr(PostgresSource, "bound_view", bound)
    run.snapshot()
    run.extract_delta()
    published = run.consolidate()["published"]
    assert len(expected) == 2
    for name in TABLES:
        assert published_counts(published[f"public.{name}"])[1] == expected[-1][name], name


@pytest.mark.slow
def test_a_view_is_read_in_full_night_after_night_and_never_rolled_forward(nights: Nights) -> None:
    nights.do(*SETUP.split(";"))
    asked = {"tables": ["public.orders", "public.totals", "public.kept"]}
    first = nights.night("auto", **asked)
    first.record()
    first.finish()
    nights.do("UPDATE orders SET amount = 0 WHERE id < 5")
    with pytest.raises(PreflightError, match=r"public\.kept, public\.totals: their copies cannot be rolled forward"):
        nights.night("changes", **asked).preflight()
    second = nights.night("auto", **asked)
    second.record()
    assert {str(plan.table): bool(plan.base) for plan in second.plans} == {
        "public.orders": True,
        "public.totals": False,
        "public.kept": False,
    }
    published = second.finish()["published"]
    for name in ("orders", "totals", "kept"):
        assert published_counts(published[f"public.{name}"])[1] == rows_of(nights)[name], name
