"""PostgreSQL connections in the forms that users write: TLS settings, passwords and the publication."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.postgres import CdcPostgresHook
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.postgres_server import PostgresServer

Connect = Callable[..., None]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Defines the connection ``shop``."""

    def define(**fields: Any) -> None:
        defaults = {"conn_type": "cdc_postgres", "host": "db.example.com", "login": "cdc", "password": "s3cret:/@"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**defaults, "schema": "shop", **fields}))

    return define


def test_both_types_of_connection_reach_the_same_hook(connection: Connect) -> None:
    for conn_type in ("cdc_postgres", "postgres"):
        connection(conn_type=conn_type)
        hook = open_hook("shop")
        assert isinstance(hook, CdcPostgresHook)
        settings = hook.settings()
        assert (settings.kind, settings.address, settings.database) == ("postgres", "cdc@db.example.com:5432", "shop")
        assert (settings.password, settings.tls, settings.options) == ("s3cret:/@", {}, {})


def test_source_survives_the_way_to_an_executor_and_shows_no_password(connection: Connect) -> None:
    connection(port=4000)
    source = open_hook("shop").get_conn()
    assert isinstance(source, PostgresSource)
    assert vars(pickle.loads(pickle.dumps(source))) == vars(source)
    assert "s3cret" not in repr(source) + repr(source.settings)


def test_form_fields_are_the_tls_settings_and_the_publication(connection: Connect) -> None:
    connection(extra={"tls_mode": "verify_ca", "tls_ca": "/etc/ca.pem", "tls_key": None, "publication": "lake"})
    settings = open_hook("shop").settings()
    assert settings.tls == {"mode": "verify_ca", "ca": "/etc/ca.pem"}
    assert settings.options == {"publication": "lake"}


def test_misspelt_field_is_refused_and_not_an_unencrypted_connection(connection: Connect) -> None:
    connection(extra={"sslmode": "verify-full"})
    with pytest.raises(ConfigurationError, match="sslmode"):
        open_hook("shop").settings()


def test_stock_connection_keeps_its_own_fields(connection: Connect) -> None:
    extra = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "cursor": "dictcursor", "publication": "lake"}
    connection(conn_type="postgres", extra=extra)
    settings = open_hook("shop").settings()
    assert settings.tls == {"mode": "verify_identity", "ca": "/etc/ca.pem"}
    assert settings.options == {"publication": "lake"}
    connection(conn_type="postgres", extra={"sslmode": "verify"})
    with pytest.raises(ConfigurationError, match="'verify'"):
        open_hook("shop").settings()


@pytest.mark.parametrize("field", CdcPostgresHook.stock_refused)
def test_a_stock_connection_that_leads_elsewhere_is_refused(connection: Connect, field: str) -> None:
    connection(conn_type="postgres", extra={field: "10.0.0.7"})
    with pytest.raises(ConfigurationError, match=f"unsupported connection extras: {field}"):
        open_hook("shop").settings()
    # Written out and left empty.
    connection(conn_type="postgres", extra={field: "", "options": "-c statement_timeout=5000"})
    assert open_hook("shop").settings().host == "db.example.com"


def test_the_form_s_test_button_says_what_answers_and_what_is_wrong(
    connection: Connect, postgres: PostgresServer
) -> None:
    fields = {"host": postgres.host, "port": postgres.port, "login": "postgres", "schema": "postgres"}
    connection(**fields)
    worked, said = open_hook("shop").test_connection()
    assert worked
    version = postgres.query("SHOW server_version")[0][0]
    assert said == f"PostgreSQL {version} at postgres@127.0.0.1:{postgres.port}, wal_level logical"
    connection(**{**fields, "schema": "nowhere"})
    refused = f"[CDC-1010] postgres@127.0.0.1:{postgres.port}: there is no database 'nowhere'"
    assert open_hook("shop").test_connection() == (False, f"{refused}\n  Hint: correct the connection's schema")
    connection(**{**fields, "schema": ""})
    worked, said = open_hook("shop").test_connection()
    assert not worked
    assert "names no database" in said


def test_the_form_s_test_button_says_what_the_user_lacks(connection: Connect, postgres: PostgresServer) -> None:
    postgres.query("CREATE ROLE tester LOGIN PASSWORD 's3cret'")
    try:
        fields = {"host": postgres.host, "port": postgres.port, "login": "tester", "schema": "postgres"}
        connection(**fields, password="s3cret")
        works, said = open_hook("shop").test_connection()
        assert not works
        assert "REPLICATION: this user cannot open a replication connection" in said
        assert 'Hint: GRANT CREATE ON DATABASE "postgres" TO "tester"' in said
        postgres.query("ALTER ROLE tester REPLICATION")
        connection(**fields, password="s3cret", extra={"publication": "made_by_the_owner"})
        assert open_hook("shop").test_connection()[0]
    finally:
        postgres.query("DROP ROLE tester")
