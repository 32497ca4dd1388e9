"""Connections of type ``cdc_catalog``, and what becomes of their secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.catalog import CdcCatalogHook, lake_settings
from airflow_provider_cdc.jobs.runtime.driver import catalog_from_environment, to_environment
from airflow_provider_cdc.sinks.iceberg.catalog import properties_of
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings

Connect = Callable[..., None]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Defines the connection ``lake``."""

    def define(extra: Any, **fields: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "cdc_catalog", "extra": extra, **fields}))

    return define


def test_each_field_arrives_in_the_properties_of_the_catalog(connection: Connect) -> None:
    properties = '{"scope": "catalog", "rest.sigv4-enabled": "true"}'
    connection(
        {"kind": "rest", "uri": "https://lake", "warehouse": "raw", "namespace": "ours", "properties": properties},
        login="client",
        password="s3cret:/@",
    )
    settings = CdcCatalogHook("lake").settings()
    assert settings.namespace == "ours"
    assert "s3cret" not in repr(settings)
    assert properties_of(settings) == {
        "type": "rest",
        "uri": "https://lake",
        "warehouse": "raw",
        "credential": "client:s3cret:/@",
        "scope": "catalog",
        "rest.sigv4-enabled": "true",
    }


def test_a_password_alone_is_a_token_and_a_database_s_is_escaped(connection: Connect) -> None:
    connection({"kind": "rest", "uri": "https://lake"}, password="token")
    assert properties_of(CdcCatalogHook("lake").settings())["token"] == "token"
    connection({"kind": "sql", "uri": "postgresql+psycopg://db:5432/lake"}, login="me", password="a/b@c")
    uri = properties_of(CdcCatalogHook("lake").settings())["uri"]
    assert uri == "postgresql+psycopg://me:a%2Fb%40c@db:5432/lake"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra": {}}, "kind is not set"),
        ({"extra": {"kind": "nessie", "uri": "https://lake"}}, "kind is nessie"),
        ({"extra": {"kind": "rest"}}, "no address"),
        ({"extra": {"kind": "sql", "uri": "postgresql://me:s3cret@db/lake"}}, "contains a user or a password"),
        (
            {"extra": {"kind": "rest", "uri": "https://lake", "token": "s3cret"}},
            "unknown fields in the extra of the connection: token",
        ),
        ({"extra": {"kind": "rest", "uri": "https://lake", "properties": "{s3cret"}}, "not a JSON object"),
        ({"extra": {"kind": "rest", "uri": "https://lake", "properties": "[]"}}, "not a JSON object"),
        ({"extra": {}, "conn_type": "postgres"}, "its type is postgres"),
    ],
)
def test_what_is_wrong_with_the_connection_is_named_and_no_secret(
    connection: Connect, fields: dict[str, Any], message: str
) -> None:
    connection(**fields)
    with pytest.raises(ConfigurationError, match=message) as refusal:
        CdcCatalogHook("lake").settings()
    assert "s3cret" not in str(refusal.value)


def test_a_connection_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        lake_settings(LakeOptions(format="iceberg", catalog_conn_id="none"), "shop")


def test_the_button_creates_and_drops_a_namespace(connection: Connect, tmp_path: Path) -> None:
    connection({"kind": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()})
    assert CdcCatalogHook("lake").test_connection() == (True, "sql catalog: a namespace was created and dropped")
    connection({"kind": "rest", "uri": "http://127.0.0.1:9"}, password="s3cret")
    works, message = CdcCatalogHook("lake").test_connection()
    assert not works
    assert "s3cret" not in message


def test_the_settings_reach_the_driver_by_its_environment() -> None:
    settings = CatalogSettings("rest", "https://lake", password="s3cret", properties={"scope": "catalog"})
    variables = to_environment(ConnectionSettings("mysql", "db", 3306, "cdc"), settings)
    assert catalog_from_environment(variables) == settings
    assert "CDC_CATALOG" not in to_environment(ConnectionSettings("mysql", "db", 3306, "cdc"))
    with pytest.raises(ConfigurationError, match="does not contain") as refusal:
        catalog_from_environment({"CDC_CATALOG": '{"kind": "rest", "s3cret": 1}'})
    assert "s3cret" not in str(refusal.value)
