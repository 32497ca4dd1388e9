"""The form of a DAG shows the options as they are declared."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import ParamValidationError

from airflow_provider_cdc.core.options import declared
from airflow_provider_cdc.task_groups import form


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_param_has_its_option_s_default_help_and_choices(kind: str) -> None:
    params = form.params(kind, source_conn_id="mine")
    assert params["source_conn_id"].value == "mine"
    options = {one.name: one for one in declared()}
    assert params["consistency"].schema["enum"] == ["auto", "watermark", "lock", "exported", "again"]
    assert params["chunk_rows"].schema["minimum"] == 1
    for name, param in params.items():
        assert param.schema["title"] == options[name].title
        assert "`" not in param.description
        assert param.description == options[name].help.replace("`", "")
        json.dumps(param.dump())
    with_a_value = {name for name, param in params.items() if param.has_value}
    assert with_a_value == params.keys() - {"tables", "target"}


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_value_of_the_form_is_refused_as_preflight_would_refuse_it(kind: str) -> None:
    for name, param in form.params(kind).items():
        if param.has_value:
            param.resolve()
        with pytest.raises(ParamValidationError):
            param.resolve(None)
        option = next(one for one in declared() if one.name == name)
        assert option.check(None) is not None


def test_an_option_of_another_kind_of_source_is_in_no_form() -> None:
    assert form.params("postgres").keys() - form.params("mysql").keys() == {"keep_slot", "standing_slot"}
    assert form.params("mysql").keys() <= form.params("postgres").keys()
    assert form.from_params("mysql").keys() == form.params("mysql").keys()
    assert form.from_params("postgres")["keep_slot"] == "{{ params.keep_slot }}"
