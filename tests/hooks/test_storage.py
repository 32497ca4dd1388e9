"""Connections to object stores: which fields count, and what becomes of their secrets."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings, check_fits, current, install, using
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.storage import storage_access, storage_settings
from airflow_provider_cdc.jobs.runtime.driver import storage_from_environment, to_environment
from airflow_provider_cdc.sinks.iceberg.catalog import properties_of
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings

Connect = Callable[..., None]
SOURCE = ConnectionSettings("mysql", "db.example", 3306, "reader", "p")
SECRET = "s3cret-horse"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Defines the connection ``store``."""

    def define(conn_type: str, extra: Any = None, **fields: Any) -> None:
        given = {"conn_type": conn_type, "extra": extra or {}, **fields}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(given))

    return define


def options() -> dict[str, str]:
    settings = storage_settings("store")
    assert settings is not None
    assert SECRET not in repr(settings)
    return dict(settings.options)


def test_fields_of_an_aws_connection(connection: Connect) -> None:
    keys = {"login": "AKIA", "password": SECRET}
    wanted = {"access_key": "AKIA", "secret_key": SECRET}
    connection("aws", {"region_name": "eu-central-1", "endpoint_url": "https://minio:9000"}, **keys)
    assert options() == wanted | {"region": "eu-central-1", "endpoint": "https://minio:9000"}
    connection(
        "aws",
        {
            "endpoint_url": "https://sts",
            "service_config": {"s3": {"endpoint_url": "https://s3"}},
            "config_kwargs": {"s3": {"addressing_style": "path"}},
            "aws_session_token": "t",
        },
        **keys,
    )
    assert options() == wanted | {"endpoint": "https://s3", "addressing": "path", "session_token": "t"}
    connection("aws", {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET})
    assert options() == wanted
    connection("aws", {"role_arn": "arn:role", "assume_role_kwargs": {"ExternalId": "x"}})
    assert options() == {"role_arn": "arn:role", "external_id": "x"}


def test_fields_of_google_and_azure_connections(connection: Connect, tmp_path: Path) -> None:
    key = {"type": "service_account", "private_key": SECRET}
    connection("google_cloud_platform", {"keyfile_dict": json.dumps(key)})
    assert json.loads(options()["key"]) == key
    (tmp_path / "key.json").write_text(json.dumps(key))
    connection("google_cloud_platform", {"extra__google_cloud_platform__key_path": str(tmp_path / "key.json")})
    assert json.loads(options()["key"]) == key
    connection("wasb", login="shop", password=SECRET)
    assert options() == {"account": "shop", "key": SECRET}
    connection("wasb", {"sas_token": f"?sig={SECRET}"}, host="shop.blob.core.windows.net")
    assert options() == {"account": "shop", "sas_token": f"sig={SECRET}"}
    connection("wasb", {"tenant_id": "t"}, host="https://shop.blob.core.windows.net", login="client", password=SECRET)
    assert options() == {"account": "shop", "tenant_id": "t", "client_id": "client", "client_secret": SECRET}
    connection("adls", {"connection_string": f"AccountName=shop;AccountKey={SECRET}==;EndpointSuffix=x"})
    assert options() == {"account": "shop", "key": f"{SECRET}=="}


@pytest.mark.parametrize(
    ("conn_type", "extra", "fields"),
    [
        ("aws", {"profile_name": "p"}, {}),
        ("aws", {"verify": False}, {"login": "a", "password": SECRET}),
        ("aws", {"role_arn": "arn:role"}, {"login": "a", "password": SECRET}),
        ("aws", {"role_arn": "arn:role", "assume_role_method": "assume_role_with_saml"}, {}),
        ("google_cloud_platform", {"impersonation_chain": "x"}, {}),
        ("google_cloud_platform", {"keyfile_dict": f'{{"private_key": "{SECRET}'}, {}),
        ("google_cloud_platform", {"key_path": "/none/key.json"}, {}),
        ("wasb", {}, {"host": f"https://shop.blob.core.windows.net?sig={SECRET}"}),
        ("mysql", {}, {"password": SECRET}),
    ],
)
def test_a_field_that_would_be_ignored_is_refused_without_its_value(
    connection: Connect, conn_type: str, extra: dict[str, Any], fields: dict[str, str]
) -> None:
    connection(conn_type, extra, **fields)
    with pytest.raises(ConfigurationError, match="'store'") as refusal:
        storage_settings("store")
    assert SECRET not in str(refusal.value)
    assert storage_settings("") is None
    with pytest.raises(ConfigurationError, match="does not exist"):
        storage_settings("none")


def test_settings_reach_the_driver_by_its_environment_and_no_pickle(connection: Connect) -> None:
    connection("aws", {"endpoint_url": "http://127.0.0.1:1", "region_name": "eu"}, login="AKIA", password=SECRET)
    with storage_access("store"):
        folder = Storage("s3://lake/raw")
        variables = to_environment(SOURCE)
        assert storage_from_environment(variables) == current()
        assert SECRET not in str([SOURCE, current(), folder])
    assert current() is None
    assert "CDC_STORAGE" not in to_environment(SOURCE)
    pickled = pickle.dumps([folder, folder.folder("below")])
    assert SECRET.encode() not in pickled
    # A worker unpickles its work before it has the settings.
    below = pickle.loads(pickled)[1]
    install(storage_from_environment(variables))
    try:
        assert below.filesystem.equals(folder.filesystem)
        assert below.path("x") == "lake/raw/below/x"
    finally:
        install(None)
    with pytest.raises(ConfigurationError, match="CDC_STORAGE") as refusal:
        storage_from_environment({"CDC_STORAGE": f'{{"stor": "{SECRET}"}}'})
    assert SECRET not in str(refusal.value)


def test_settings_for_another_store_are_refused_and_a_disk_needs_none(tmp_path: Path) -> None:
    settings = StorageSettings("gcs", {"key": SECRET})
    check_fits(settings, {"target": tmp_path.as_uri(), "scratch": "gs://lake/scratch"})
    with pytest.raises(ConfigurationError, match="is for gcs, and neither target nor scratch"):
        check_fits(settings, {"target": "s3://lake/raw", "scratch": tmp_path.as_uri()})
    with using(settings):
        Storage(tmp_path.as_uri()).write_json("a.json", {})


def test_tables_of_a_catalog_are_opened_with_them() -> None:
    settings = StorageSettings(
        "s3", {"access_key": "AKIA", "secret_key": SECRET, "region": "eu", "endpoint": "http://x"}
    )
    catalog = CatalogSettings("rest", "https://lake", properties={"s3.region": "us"})
    with using(settings):
        properties = properties_of(catalog)
    assert {name: value for name, value in properties.items() if name.startswith("s3.")} == {
        "s3.access-key-id": "AKIA",
        "s3.secret-access-key": SECRET,
        "s3.endpoint": "http://x",
        "s3.region": "us",
    }
