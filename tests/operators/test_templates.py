"""A template that cannot be rendered causes an error that names it, and says what to write instead."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc.operators.arguments.templates import WITH_A_LOGICAL_DATE
from airflow_provider_cdc.sensors.published import PublishedSensor
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup


def render(argument: str, value: Any, **context: Any) -> Any:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)):
        given = {"source_conn_id": "shop", "tables": ["shop.*"], "target": "s3://lake", argument: value}
        group = SnapshotTaskGroup(**given)
    group.preflight.render_template_fields(context)
    return getattr(group.preflight, argument)


@pytest.mark.parametrize("name", WITH_A_LOGICAL_DATE)
def test_what_a_run_without_a_logical_date_lacks_is_named_with_what_to_write_instead(name: str) -> None:
    with pytest.raises(AirflowFailException, match=f"argument as_of: the template uses {name}, but") as refused:
        render("as_of", f"{{{{ {name} }}}}")
    assert "dag_run.run_after" in str(refused.value)
    with pytest.raises(AirflowFailException, match=f"argument target: the template uses {name}, but"):
        render("target", f"s3://lake/{{{{ {name} }}}}")


@pytest.mark.parametrize("tables", [["{{ nothing }}"], ["a.{{ nothing }}"], "{{ params.nothing }}", "{% if %}"])
def test_any_other_template_that_cannot_be_rendered_is_told_by_the_argument_s_name(tables: Any) -> None:
    with pytest.raises(AirflowFailException, match="argument tables: cannot render the template: ") as refused:
        render("tables", tables, params={})
    assert type(refused.value).__name__ == "ConfigurationError"


def test_what_is_there_is_rendered() -> None:
    assert render("as_of", "{{ ds if ds is defined else run }}", run="x") == "x"
    assert render("tables", ["{{ a }}.b", "c.d"], a="x") == ["x.b", "c.d"]
    assert render("tables", "{{ params.tables }}", params={"tables": ["a.b"]}) == ["a.b"]


def test_sensors_say_it_as_well() -> None:
    with DAG("d", schedule=None):
        sensor = PublishedSensor(task_id="s", target="s3://lake", table="a.b", position="{{ data_interval_end }}")
    with pytest.raises(AirflowFailException, match="argument position: the template uses data_interval_end"):
        sensor.render_template_fields({})
