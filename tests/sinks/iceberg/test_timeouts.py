"""A catalog that accepts connections and never answers does not hang a run."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, StorageUnavailable
from airflow_provider_cdc.sinks.iceberg import sql
from airflow_provider_cdc.sinks.iceberg.catalog import TIMEOUT, open_catalog
from airflow_provider_cdc.sinks.registry import CatalogSettings
from harness.postgres_server import PostgresServer


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("login", ["", "client"])
def test_a_silent_catalog_is_an_error_that_a_retry_may_fix(silent: str, login: str, tmp_path: Path) -> None:
    """With a login, PyIceberg asks for a token first."""
    settings = CatalogSettings(
        "rest", silent, login=login, password="s3cret-horse", properties={TIMEOUT: "0.2", "oauth2-server-uri": silent}
    )
    with pytest.raises(StorageUnavailable, match="does not answer") as failure:
        open_catalog(settings, Storage(tmp_path.as_uri()))
    assert "s3cret-horse" not in str(failure.value)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_silent_database_is_an_error_that_a_retry_may_fix(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "CONNECT_SECONDS", 2)
    uri = silent.replace("http", "postgresql+psycopg") + "/lake"
    settings = CatalogSettings("sql", uri, tmp_path.as_uri(), login="copier", password="s3cret-horse")
    with pytest.raises(StorageUnavailable, match="does not answer") as failure:
        open_catalog(settings, Storage(tmp_path.as_uri()))
    assert "s3cret-horse" not in str(failure.value)


def test_a_database_that_is_down_may_come_back_and_a_missing_one_does_not(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address = "postgresql+psycopg://postgres@{}:{}/{}".format
    lake = Storage(tmp_path.as_uri())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(StorageUnavailable, match="does not answer"):
        open_catalog(CatalogSettings("sql", address("127.0.0.1", port, "lake"), lake.uri), lake)
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        open_catalog(CatalogSettings("sql", address(postgres.host, postgres.port, "no_such_one"), lake.uri), lake)


def test_pyiceberg_configures_each_session_before_it_sends_anything() -> None:
    lines = [line.strip() for line in inspect.getsource(RestCatalog._create_session).splitlines()]
    calls = [line for line in lines if "session" in line and "(" in line and not line.startswith(('"', "#", "def"))]
    assert calls[:2] == ["session = Session()", "self._config_headers(session)"]
