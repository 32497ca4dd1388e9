"""The type and value of every parameter are checked, and all problems are reported at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_cdc import Lake, Read
from airflow_provider_cdc.core.options.arguments import declared
from airflow_provider_cdc.core.options.lake import MergeOptions
from airflow_provider_cdc.core.options.run import LimitOptions, LockPolicy, StepOptions, TableOptions, checked
from airflow_provider_cdc.core.positions.kinds import KINDS
from airflow_provider_cdc.errors import ConfigurationError, PreflightError
from airflow_provider_cdc.operators.arguments.options import check_kind
from airflow_provider_cdc.operators.preflight import PreflightOperator

RIGHT: dict[str, Any] = {
    "source_conn_id": "shop",
    "tables": ["shop.orders"],
    "target": "file:///lake",
    "scratch": "",
    "consistency": "auto",
    "unrepresentable": "error",
    "arrays": "text",
    "spark_conn_id": "spark_default",
    "conf": None,
    "shared_app_seconds": 0,
    "chunk_rows": 1,
    "chunk_pause": 0,
    "where": {"shop.orders": "id = 1"},
    "columns": None,
    "missing_past": "present",
    "as_of": "",
    "as_of_wait_seconds": 600,
    "standing_slot": "",
    "standing_slot_hours": 48,
    "refresh": "full",
    "changes": False,
    "on_feed_gap": "fail",
    "keep": 0,
    "keep_days": 0,
    "max_reads": 0,
    "max_rows_per_second": 0,
    "governor": {"threads_running": 40, "SELECT 1": 0.5},
    "scrub_days": 7,
    "scrub_gib": 0.0,
    "lock_wait_seconds": 1,
    "lock_tries": 1,
    "lock_pause_seconds": 0.5,
    "lock_through_read": False,
    "slot_wait_seconds": 600,
    "read_conn_ids": ["replica"],
    "log_conn_id": "",
    "replica_wait_seconds": 600,
    "keep_slot": False,
    "format": "parquet",
    "catalog_conn_id": "",
    "table_name": "{schema}.{table}",
    "partition_by": None,
    "sort_by": None,
    "on_type_change": "stop",
    "on_foreign_commit": "stop",
    "compression": "zstd",
    "storage_conn_id": "",
    "partition_key": "",
    "on_table_error": "fail",
    "on_schema_change": "restart_table",
    "concurrent_runs": "allow",
    "concurrent_wait_seconds": 0,
    "spool": "auto",
    "on_short_log": "stop",
    "merge": None,
    "origin_columns": False,
    "on_collision": "fail",
    "vanished_shards": None,
    "column_order": "first_shard",
    "plan_only": False,
}

MINIMAL = {name: RIGHT[name] for name in ("source_conn_id", "tables", "target")}

WRONG: dict[str, list[Any]] = {
    "source_conn_id": ["", " ", None, 5],
    "tables": ["shop.orders", [], [""], [1], None, {"shop.orders": 1}],
    "target": ["", None, 5, ["file:///lake"]],
    "scratch": [5, ["file:///lake"]],
    "consistency": ["Auto", "", None, 1, ["auto"]],
    "unrepresentable": ["Null", "", None, True, ["null"]],
    "arrays": ["Text", "", None, "array"],
    "missing_past": ["Present", "", None, True],
    "spark_conn_id": ["", None],
    "conf": ["spark.x=1", [("spark.x", 1)], {1: 2}],
    "shared_app_seconds": [-1, "60", None, True],
    "chunk_rows": [0, -1, 1.5, "1", True, None, float("nan")],
    "chunk_pause": [-1, "1", None, True, float("nan"), float("inf")],
    "as_of": [
        5,
        "yesterday",
        "2026-02-30",
        "2026-01-31T00:00:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        datetime(2026, 1, 31),
        "e2a1b8a8-c1f1-11ee-9c5a-0242ac120002:5-",
        "0/",
    ],
    "where": ["id = 1", [], {"shop.orders": ""}, {"shop.orders": 1}, {1: "id = 1"}],
    "columns": [["id"], {"shop.orders": "id"}, {"shop.orders": []}, {"shop.orders": [1]}],
    "as_of_wait_seconds": [0, -1, 1.5, "5", True],
    "standing_slot": ["Nightly", "a-b", "a" * 31, "a\n", 5],
    "standing_slot_hours": [0, -1, 1.5, "5", True],
    "refresh": ["Full", "", None, True, "forward"],
    "changes": ["true", 1, None],
    "on_feed_gap": ["Fail", "", None, "begin"],
    "keep": [-1, 1.5, 0.0, "5", True, False, None],
    "keep_days": [-1, 1.5, 0.0, "5", True, False, None],
    "scrub_days": [-1, 1.5, "5", True, None],
    "scrub_gib": [-1, "5", True, None, float("nan"), float("inf")],
    "format": ["Parquet", "", None, 1, "delta"],
    "catalog_conn_id": [5, ["lake"]],
    "partition_by": [["id"], {"shop.orders": "id"}, {"shop.orders": []}],
    "sort_by": [["id"], {"shop.orders": "id"}],
    "on_type_change": ["Stop", None, "replace"],
    "on_foreign_commit": ["", None, "new_column"],
    "compression": ["ZSTD", "", None, 1, "lz4"],
    "table_name": ["", None, 5, "table", ".table", "schema."],
    "storage_conn_id": [5, ["lake"]],
    # Airflow would refuse the blank and the long key after the publication. The number 0 may have been the text 00.
    "partition_key": [" ", "x" * 251, 0, -1, 1.5, True, ["2026-01-01"]],
    "max_reads": [-1, 1.5, "5", True, None],
    "max_rows_per_second": [-1, 1.5, "5", True, None],
    "governor": [["threads_running"], {"threads_running": -1}, {"threads_running": "9"}, {"": 1}, {"x": float("inf")}],
    "lock_wait_seconds": [0, -1, 1.5, "5", True],
    "lock_tries": [0, "1", None],
    "lock_pause_seconds": [-0.1, "1", None],
    "lock_through_read": ["false", 0, 1, None],
    "slot_wait_seconds": [0, -1, 1.5, "5", True],
    "read_conn_ids": ["replica", [""], [5], {"replica"}],
    "log_conn_id": [5, ["replica"]],
    "replica_wait_seconds": [0, -1, 1.5, "5", True],
    "keep_slot": ["false", 0, None],
    "on_table_error": ["Skip", "", None, False],
    "on_schema_change": ["Restart", "", None, False],
    "concurrent_runs": ["Wait", "", None],
    "concurrent_wait_seconds": [-1, "5", None],
    "spool": ["Auto", "", None, True],
    "on_short_log": ["Stop", "", None, "fail"],
    "merge": [["shop.orders"], {"shop.orders": "shop_1.orders"}, {"shop.orders": []}, {"": ["shop_1.orders"]}],
    "origin_columns": ["true", 1, None],
    "on_collision": ["Fail", "", None, "origin"],
    "vanished_shards": ["shop_1.orders", [1], {"shop.orders": 1}],
    "column_order": ["Name", "", None, "by_name"],
    "plan_only": ["true", 1, None],
}


def test_what_the_operator_takes_is_what_is_checked() -> None:
    assert set(RIGHT) == set(WRONG) == set(PreflightOperator.template_fields)
    assert checked(RIGHT).tables == ["shop.orders"]


def test_each_value_arrives_where_it_is_used() -> None:
    given = {**RIGHT, "consistency": "lock", "lock_tries": 3, "slot_wait_seconds": 7, "keep_slot": True}
    found = checked({**given, "conf": {"spark.x": "1"}})
    assert found.table == TableOptions("lock", "error")
    limits = LimitOptions(0, 0, {"threads_running": 40.0, "SELECT 1": 0.5})
    lock, merging = LockPolicy(1, 3, 0.5, False, 7), MergeOptions({}, vanished_shards=[])
    steps = StepOptions(1, 0, limits=limits, lock=lock, merging=merging, keep_slot=True, read_conn_ids=["replica"])
    assert found.steps == steps
    assert found.spark_conf == {"spark.x": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_source_refuses_the_defaults(kind: str) -> None:
    """A form sends the default of each option, also of those for another kind of source."""
    defaults = {one.argument: one.default for one in declared() if not one.required}
    given = {"source_conn_id": "source", "tables": ["shop.orders"], "target": "file:///lake"}
    check_kind(checked({**RIGHT, **defaults, **given}), kind)


def test_a_partition_key_that_became_a_number_when_it_was_rendered_is_text_again() -> None:
    for value, key in {"2026-01-01": "2026-01-01", 20260101: "20260101", "": "", None: ""}.items():
        assert checked({**RIGHT, "partition_key": value}).steps.partition_key == key


def test_a_misspelt_codec_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="'zstandard' is not one of zstd, snappy") as refusal:
        Lake("file:///lake", compression="zstandard")
    assert refusal.value.hint == "did you mean zstd?"


def test_days_alone_remove_nothing_and_are_refused() -> None:
    with pytest.raises(PreflightError, match=r"parameter keep_days \(Retention.days\): no copy is ever removed"):
        checked({**RIGHT, "keep_days": 7})
    assert checked({**RIGHT, "keep_days": 7, "keep": 1}).steps.keep_days == 7


def test_the_operator_shows_its_options_to_airflow_which_fills_them_in_and_misses_them() -> None:
    given = {name: RIGHT[name] for name in ("source_conn_id", "tables")}
    default_args: dict[str, object] = {"read": Read(lock_tries=3)}
    task = PreflightOperator(task_id="t", target="file:///lake", default_args=default_args, **given)
    assert (task.lock_tries, task.lock_wait_seconds, task.conf) == (3, 5, None)
    with pytest.raises(TypeError, match="'target'"):
        PreflightOperator(task_id="u", **given)
    with pytest.raises(TypeError, match="lock_trys"):
        PreflightOperator(task_id="v", target="file:///lake", lock_trys=3, **given)  # type: ignore[call-arg]


def test_an_option_without_effect_is_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="without as_of_wait_seconds, which has no effect"):
        PreflightOperator(task_id="t", **{**MINIMAL, "as_of_wait_seconds": 5})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(PreflightError) as refused:
        checked({**RIGHT, name: value})
    (problem,) = refused.value.problems
    assert problem.where.partition(" (")[0] == f"parameter {name}"
    # Where people put secrets, nothing is shown.
    assert (repr(value) in problem.what) == (not value or name not in ("target", "scratch", "conf"))
    assert problem.hint


def test_all_wrong_values_are_told_at_once() -> None:
    with pytest.raises(PreflightError) as refused:
        checked({name: values[0] for name, values in WRONG.items()})
    assert len(refused.value.problems) == len(WRONG)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", ""),
        (None, ""),
        ("2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31 02:00:00+02:00", "2026-01-31 02:00:00+02:00"),
        # What a template such as {{ data_interval_end }} becomes.
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00+00:00"),
        ("e2a1b8a8-c1f1-11ee-9c5a-0242ac120002:1-5:night:7", "e2a1b8a8-c1f1-11ee-9c5a-0242ac120002:1-5:night:7"),
        ("16/B374D848", "16/B374D848"),
    ],
)
def test_a_point_is_a_time_with_its_zone_or_a_position(given: Any, text: str) -> None:
    assert checked({**RIGHT, "as_of": given}).steps.as_of == text
