"""The objects with the options of a run, as the author of a DAG writes them."""

from __future__ import annotations

import copy
import inspect
import pickle
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

import airflow_provider_cdc
from airflow_provider_cdc import Iceberg, Lake, Limits, Merge, On, Refresh, Retention, SnapshotTaskGroup, Spark, Table
from airflow_provider_cdc.core.options.run import checked
from airflow_provider_cdc.errors import ConfigurationError, PreflightError

CONTEXT = {
    "params": {"tables": ["a.*", {"name": "a.b", "where": "id = 1"}], "n": 4, "ok": True, "lag": 30},
    "schema": "eu",
    "day": "2026-01-31",
}


def group(**arguments: Any) -> SnapshotTaskGroup:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)):
        return SnapshotTaskGroup(**{"source_conn_id": "eu", "tables": ["a.b"], "target": "s3://lake", **arguments})


def rendered(made: SnapshotTaskGroup) -> Any:
    """The options as preflight checks them, after Airflow has rendered the task."""
    made.preflight.render_template_fields(dict(CONTEXT))
    return checked({name: getattr(made.preflight, name) for name in made.preflight.template_fields})


def test_templates_in_objects_are_rendered_and_keep_their_types() -> None:
    found = rendered(
        group(
            tables=[
                "{{ schema }}.c",
                Table("{{ schema }}.orders", where="day = '{{ day }}'", columns=["id", "{{ schema }}"]),
                Merge("all.orders", ["{{ schema }}_*.orders"], origin_columns="{{ params.ok }}"),
            ],
            target=Lake("s3://{{ schema }}", format=Iceberg("{{ schema }}"), retention="{{ params.n }}"),
            refresh=Refresh("auto", changes="{{ params.ok }}"),
            limits=Limits(max_reads="{{ params.n }}", governor={"replica_lag_seconds": "{{ params.lag }}"}),
            spark=Spark("{{ schema }}", conf={"spark.x": "{{ day }}"}),
        )
    )
    assert found.tables == ["eu.c", "eu.orders", "eu_*.orders"]
    assert found.where == {"eu.orders": "day = '2026-01-31'"}
    assert found.columns == {"eu.orders": ["id", "eu"]}
    assert found.steps.merging.merge == {"all.orders": ["eu_*.orders"]}
    assert found.steps.merging.origin_columns is True
    assert (found.target, found.steps.lake.format, found.steps.lake.catalog_conn_id) == ("s3://eu", "iceberg", "eu")
    assert (found.steps.keep, found.steps.changes, found.steps.limits.max_reads) == (4, True, 4)
    assert found.steps.limits.thresholds == {"replica_lag_seconds": 30}
    assert (found.spark_conn_id, found.spark_conf) == ("eu", {"spark.x": "2026-01-31"})


def test_a_template_of_the_whole_list_may_have_objects() -> None:
    found = rendered(group(tables="{{ params.tables }}"))
    assert (found.tables, found.where) == (["a.*", "a.b"], {"a.b": "id = 1"})


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([{"name": "a.b", "where_": "id = 1"}], "did you mean where?"),
        ([{"where": "id = 1"}], "the object Table has no name"),
        ([{"name": "a.b", "where": 5}], "Table.where: 5 is not a condition"),
        ([{"name": "a.b", "where": "x"}, {"name": "a.b", "where": "y"}], "where is set twice for a.b"),
    ],
)
def test_what_is_wrong_in_an_object_of_a_template_is_told_with_all_other_problems(tables: Any, told: str) -> None:
    made = group(tables="{{ params.tables }}", limits=Limits(max_reads="{{ params.tables }}"))
    made.preflight.render_template_fields({"params": {"tables": tables}})
    with pytest.raises(PreflightError) as refused:
        checked({name: getattr(made.preflight, name) for name in made.preflight.template_fields})
    assert told in str(refused.value)
    assert "parameter max_reads (Limits.max_reads)" in str(refused.value)


def test_the_output_of_a_task_in_an_object_makes_the_task_upstream() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @task
        def number() -> int:
            return 4

        @task
        def condition() -> str:
            return "id = 1"

        SnapshotTaskGroup(
            source_conn_id="eu",
            tables=[Table("a.b", where=condition())],
            target=Lake("s3://lake", retention=number()),
            limits=Limits(max_reads=number()),
        )
    assert dag.get_task("preflight").upstream_task_ids == {"number", "number__1", "condition"}
    assert set(DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).task_ids) == {*dag.task_ids}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Limits(max_read=4), ["Limits has no attribute 'max_read'", "did you mean max_reads?"]),  # type: ignore[call-arg]
        (lambda: Limits(zzz=4), ["its attributes are max_reads, "]),  # type: ignore[call-arg]
        (lambda: Limits(max_reads=-1), ["Limits.max_reads: -1 is not a whole number", "give a number such as 2"]),
        (lambda: Limits(max_reads="four"), ["Limits.max_reads: 'four' is not a whole number"]),
        (lambda: On(table_error="Skip"), ["On.table_error: 'Skip' is not one of fail, skip"]),
        (lambda: Table("a.b", columns="id"), ["Table.columns: 'id' is not a list of columns"]),
        (lambda: Lake("s3://a", retention=Refresh()), ["Lake.retention: ", "Retention"]),  # type: ignore[arg-type]
        (lambda: Lake("s3://a", retention=-1), ["Retention.copies: -1 is not"]),
        (lambda: Lake("s3://a", format="delta"), ["Lake.format: 'delta' is not one of parquet, iceberg"]),
        (lambda: Lake("s3://a?secret=1", format="x"), ["Lake.format"]),
        (lambda: group(limits=4), ["limits: 4 is not accepted here", "give an object Limits"]),
        (lambda: group(target=Table("a.b")), ["target: ", "give an object Lake"]),
        (lambda: group(refresh="forward"), ["Refresh.mode: 'forward' is not one of full, auto, changes"]),
        (lambda: group(tables=[Lake("s3://a")]), ["tables: ", "Table or Merge"]),
        (lambda: group(tables=Table("a.b")), ["tables: ", "write [Table('a.b')]"]),
        (lambda: group(limit=Limits()), ["SnapshotTaskGroup has no argument 'limit'", "did you mean limits?"]),
        (lambda: group(spark=Spark("a"), spark_conn_id="b"), ["spark_conn_id is set twice"]),
    ],
)
def test_a_mistake_is_an_error_of_the_dag_that_names_the_object_and_the_attribute(make: Any, told: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    for part in told:
        assert part in str(refused.value)


def test_an_object_is_shown_as_it_is_written_and_hides_secrets() -> None:
    lake = Lake("s3://lake", format=Iceberg("cat"), retention=Retention(7, days=30))
    assert repr(lake) == "Lake('s3://lake', format=Iceberg('cat'), retention=Retention(7, days=30))"
    names = {name: getattr(airflow_provider_cdc, name) for name in airflow_provider_cdc.__all__}
    for other in (eval(repr(lake), names), copy.deepcopy(lake), pickle.loads(pickle.dumps(lake))):
        assert other == lake
    assert "hunter2" not in repr(Lake("s3://key:hunter2@host/x")) + repr(Spark(conf={"spark.x": "hunter2"}))


def test_a_value_in_place_of_an_object_is_its_first_attribute() -> None:
    plain = group(target="s3://x", refresh="auto", spark="yarn", tables=["a.b"])
    whole = group(target=Lake("s3://x"), refresh=Refresh("auto"), spark=Spark("yarn"), tables=[Table("a.b")])
    assert rendered(plain) == rendered(whole)


def test_the_signature_has_the_twelve_arguments() -> None:
    shown = inspect.signature(SnapshotTaskGroup).parameters
    assert len([one for one in shown.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]) == 12
    for name in airflow_provider_cdc.__all__:
        assert inspect.getdoc(getattr(airflow_provider_cdc, name))
