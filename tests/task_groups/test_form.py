"""The form of a DAG shows the options as they are declared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import ParamValidationError
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_cdc import Allow
from airflow_provider_cdc.core.options.arguments import declared
from airflow_provider_cdc.core.options.run import checked
from airflow_provider_cdc.core.positions.as_of import is_as_of
from airflow_provider_cdc.operators.arguments.options import Given
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.task_groups import form


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_param_has_its_option_s_default_help_and_choices(kind: str) -> None:
    params = form.params(kind, source_conn_id="cdc_mine")
    assert params["source_conn_id"].value == "cdc_mine"
    options = {one.name: one for one in declared()}
    own = {"mysql": ["lock"], "postgres": ["exported", "again"]}[kind]
    assert params["consistency"].schema["enum"] == ["auto", "watermark", *own, None]
    assert params["consistency"].schema["values_display"].keys() == {"auto", "watermark", *own, "null"}
    assert params["chunk_rows"].schema["minimum"] == 1
    for name, param in params.items():
        assert param.schema["title"] == options[name].title
        assert "`" not in param.description
        json.dumps(param.dump())
    with_a_value = {name for name, param in params.items() if param.has_value}
    assert with_a_value == params.keys() - {"tables", "target"}


@pytest.mark.parametrize("kind", ["mysql", "postgres", form.ANY])
def test_help_uses_the_words_of_the_labels(kind: str) -> None:
    params = form.params(kind)
    # Names of one plain word, such as `tables`, are words of English, too.
    names = [one.name for one in declared() if "_" in one.name]
    for param in params.values():
        assert not [name for name in names if name in param.description], param.description
    assert '"Copies to keep"' in params["keep_days"].description
    # A choice that has the name of an option.
    assert "changes: like auto" in params["refresh"].description
    assert params["where"].schema["title"] == "Rows (where)"


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_only_what_has_no_default_has_a_star_and_an_emptied_field_gets_its_default(kind: str) -> None:
    given = {"source_conn_id": f"cdc_{kind}"}
    params = form.params(kind, **given)
    starred = {name for name, param in params.items() if "null" not in param.schema["type"]}
    assert starred == {name for name, param in params.items() if not param.has_value} == {"tables", "target"}
    filled = {"tables": ["shop.orders"], "target": "/lake"}
    with DAG("emptied", render_template_as_native_obj=True) as dag:
        given_options = Given(form.from_params(kind, **given), Allow(), {})
        task = PreflightOperator.of_options(given_options, "preflight")
    emptied = {name: param.resolve(filled.get(name)) for name, param in params.items()}
    environment = dag.get_template_env()
    values = {
        name: task.render_template(getattr(task, name), {"params": emptied}, environment)
        for name in task.template_fields
    }
    assert checked(values) == checked({one.argument: one.default for one in declared()} | given | filled)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_value_of_the_form_is_refused_as_preflight_would_refuse_it(kind: str) -> None:
    for name, param in form.params(kind).items():
        if param.has_value:
            param.resolve()
        option = next(one for one in declared() if one.name == name)
        if option.default in ("", None):
            # Else the form would not let anybody leave it empty.
            assert option.check(None) is None
            assert not option.accepts.plain(None)
        else:
            assert option.check(None) is not None
        wrong: dict[str, Any] = {"an": {"object": [1]}}
        assert option.check(wrong) is not None
        with pytest.raises(ParamValidationError):
            param.resolve(wrong)


def test_an_option_of_another_kind_of_source_is_in_no_form() -> None:
    assert form.params("postgres").keys() - form.params("mysql").keys() == {"keep_slot", "standing_slot"}
    assert not form.params("mysql").keys() - form.params("postgres").keys()
    assert form.from_params("mysql").keys() == form.params("mysql").keys()
    assert form.from_params("postgres")["as_of"] == "{{ params.as_of }}"


def test_a_form_for_any_source_has_every_option_and_says_which_are_for_one_kind() -> None:
    params = form.params(form.ANY)
    assert params.keys() == form.from_params(form.ANY).keys() == {one.name for one in declared() if one.in_form}
    assert params["consistency"].schema["enum"] == ["auto", "watermark", "lock", "exported", "again", None]
    assert params["standing_slot"].description.startswith("PostgreSQL only. ")
    assert not params["source_conn_id"].has_value


def test_what_is_common_comes_before_what_is_folded() -> None:
    sections = {name: param.schema.get("section") for name, param in form.params(form.ANY).items()}
    common = [name for name, section in sections.items() if section is None]
    assert common == ["source_conn_id", "tables", "where", "target", "as_of", "refresh", "plan_only"]
    assert list(sections)[: len(common)] == common
    folded = list(dict.fromkeys(section for section in sections.values() if section))
    assert folded == ["Tables", "Merged tables", "Lake", "Refresh", "Reading", "Limits", "Exceptions", "Spark"]
    assert [section for section in sections.values() if section] == sorted(
        (section for section in sections.values() if section), key=folded.index
    )


def test_a_form_offers_the_connections_and_targets_that_are_allowed_and_refuses_other_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__CDC__SOURCE_CONN_IDS", "shop, cdc_*")
    monkeypatch.setenv("AIRFLOW__CDC__TARGETS", "s3://lake/raw /data/{source}")
    params = form.params("mysql", source_conn_id="elsewhere")
    source = params["source_conn_id"]
    assert source.schema["examples"] == ["shop"]
    assert not source.has_value, "a default that is not allowed would make the DAG invalid"
    assert params["target"].schema["examples"] == ["s3://lake/raw", "/data/{source}"]
    for value in ("shop", "cdc_x"):
        assert source.resolve(value) == value
    for value in ("shopping", "xcdc_", "Shop"):
        assert_refused(source, value, "'one of shop, cdc_*' was expected")


def test_the_only_connection_and_the_only_target_are_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CDC__SOURCE_CONN_IDS", "shop.eu")
    monkeypatch.setenv("AIRFLOW__CDC__TARGETS", "s3://lake/raw")
    params = form.params(form.ANY)
    assert (params["source_conn_id"].value, params["target"].value) == ("shop.eu", "s3://lake/raw")
    with pytest.raises(ParamValidationError):
        params["source_conn_id"].resolve("shopXeu")


_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@given(
    st.one_of(
        st.datetimes(timezones=st.timezones()).map(lambda when: when.isoformat()),
        st.datetimes(timezones=st.timezones()).map(lambda when: when.strftime("%Y%m%dT%H%M%S%z")),
        st.dates().map(lambda day: day.isoformat()),
        st.sampled_from(
            ["", " ", " 2026-01-31 ", "2026-01-31T00Z", "2026-W05-1T00+01:00", "16/B374D848", "0/0", "20260131T00Z"]
        ),
        st.sampled_from([f"{_UUID}:1-5", f" {_UUID}:1,\n{_UUID}:tag:1-3", _UUID.replace("-", "") + ":1"]),
        st.text(max_size=30),
    )
)
@example(",")
def test_a_form_takes_every_position_that_preflight_takes(text: str) -> None:
    param = form.params(form.ANY)["as_of"]
    if is_as_of(text):
        assert param.resolve(text) == text


@pytest.mark.parametrize("text", ["now", "yesterday", "12", "2026-01"])
def test_a_form_refuses_what_is_no_position_at_all(text: str) -> None:
    assert_refused(form.params(form.ANY)["as_of"], text, "a date such as 2026-01-31")


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([], "such as shop.orders"),
        (["orders"], "such as shop.orders"),
        (["."], "such as shop.orders"),
        (["shop.orders", 1], "such as shop.orders"),
    ],
)
def test_a_form_refuses_what_names_no_tables(tables: Any, told: str) -> None:
    assert_refused(form.params(form.ANY)["tables"], tables, told)


def test_a_form_tells_what_a_slot_may_be_called() -> None:
    assert_refused(form.params("postgres")["standing_slot"], "Nightly", "such as nightly")


def assert_refused(param: Param, value: Any, told: str) -> None:
    """The message to the user who triggers the DAG has an example, and no regular expression."""
    with pytest.raises(ParamValidationError) as refusal:
        param.resolve(value)
    assert told in str(refusal.value)
    assert "pattern" not in str(refusal.value)
