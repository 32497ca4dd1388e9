"""A copy of some columns as of a past position: only what these columns need counts."""

from __future__ import annotations

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.sources.planning.selections import requested, select
from tests.conftest import PostgresFactory
from tests.sources.postgres.standing import RUN_ID, Kept


def test_a_generated_column_that_is_left_out_does_not_need_to_be_in_the_log(postgres_factory: PostgresFactory) -> None:
    """Before version 18, no publication has generated columns."""
    kept = Kept(postgres_factory(None, 16), "postgres")
    kept.run("CREATE TABLE stock (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED)")
    kept.run("ALTER TABLE stock REPLICA IDENTITY FULL")
    plans = kept.source.preflight(["public.stock"], TableOptions(), requested(None, {"public.stock": ["v"]}))
    plans = select(kept.source, plans, [], None, {"public.stock": ["v"]})
    kept.source.keep_past(plans, kept.options)
    point = as_of.parse(kept.here())
    assert point is not None
    kept.source.check_past(point, plans, kept.options)
    (table,) = kept.source.record_past(point, plans, kept.options, RUN_ID).tables
    assert table.published_columns == ["id", "v"]
    kept.forget()
