"""The fields with which a source's connection asks for tokens, as Airflow's own hooks read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable
from airflow_provider_cdc.hooks import open_hook, source_in_event_loop

RDS_HOST = "shop.c0ffee123456.eu-central-1.rds.amazonaws.com"
TYPES = ["mysql", "postgres", "cdc_mysql", "cdc_postgres"]

Define = Callable[..., None]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)

    def connection(conn_id: str = "shop", **fields: Any) -> None:
        usual = {"conn_type": "mysql", "host": RDS_HOST, "login": "cdc", "password": "unused"}
        fields = {**(usual if conn_id == "shop" else {}), **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return connection


@pytest.mark.parametrize("conn_type", TYPES)
def test_all_types_of_connections_take_the_keys_of_the_aws_connection(conn_type: str, define: Define) -> None:
    keys = {"aws_session_token": "session", "role_arn": "arn:aws:iam::1:role/x", "assume_role_kwargs": {"Policy": "{}"}}
    define("keys", conn_type="aws", login="AKIA", password="s3cret", extra=keys)
    define(conn_type=conn_type, schema="shop", extra={"iam": True, "aws_conn_id": "keys"})
    settings = open_hook("shop").settings()
    assert (settings.auth, settings.password, settings.options) == ("rds_iam", "", {})
    assert settings.credentials == {
        "access_key": "AKIA",
        "secret_key": "s3cret",
        "session_token": "session",
        "region": "eu-central-1",
        "role_arn": "arn:aws:iam::1:role/x",
        # As Airflow's hook assumes the role.
        "role_arguments": '{"Policy": "{}", "RoleSessionName": "airflow_keys"}',
    }
    assert "s3cret" not in repr(settings)
    assert asyncio.run(source_in_event_loop("shop")).settings == settings  # type: ignore[attr-defined]


def test_region_is_that_of_the_extra_or_the_aws_connection_or_the_host_or_the_environment(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    def region(host: str, **extra: str) -> str:
        define(host=host, extra={"iam": "true", **extra})
        return open_hook("shop").settings().credentials["region"]

    with pytest.raises(ConfigurationError, match=r"the region of db\.example\.com is unknown"):
        region("db.example.com")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert region("db.example.com") == "us-east-1"
    assert region("shop.proxy-c0ffee123456.cn-north-1.rds.amazonaws.com.cn") == "cn-north-1"
    define("aws_default", conn_type="aws", extra={"region_name": "eu-west-1"})
    assert region(RDS_HOST) == "eu-west-1"
    assert region(RDS_HOST, region_name="eu-south-2") == "eu-south-2"


def test_the_identity_of_the_machine_is_used_only_where_airflow_s_hooks_would_use_it(define: Define) -> None:
    for extra in ({}, {"aws_conn_id": None}):
        define(extra={"iam": True, **extra})
        assert open_hook("shop").settings().credentials == {"region": "eu-central-1"}
    define(extra={"iam": True, "aws_conn_id": "keyz"})
    with pytest.raises(ConfigurationError, match="connection 'keyz': the connection, which makes the tokens"):
        open_hook("shop").settings()
    # Airflow reports the same if its own server does not answer.
    with pytest.raises(SourceUnavailable, match="keyz"):
        asyncio.run(source_in_event_loop("shop"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a Redshift cluster": ({"redshift": True}, "Redshift cannot be copied"),
    "serverless Redshift": ({"redshift-serverless": True}, "Redshift cannot be copied"),
    "two clouds": ({"aws_conn_id": "keys", "azure_conn_id": "keys"}, "has aws_conn_id and azure_conn_id"),
    "a misspelt answer": ({"iam": "maybe"}, "the field iam .* is 'maybe'"),
    "a connection of another cloud": ({"gcp_conn_id": "keys"}, "is of the type aws"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_give_a_token_is_refused_with_the_reason(case: str, define: Define) -> None:
    extra, message = REFUSED[case]
    define("keys", conn_type="aws")
    define(conn_type="postgres", schema="shop", extra={"iam": True, **extra})
    with pytest.raises(ConfigurationError, match=message):
        open_hook("shop").settings()


@pytest.mark.parametrize("field", ["profile_name", "assume_role_with_web_identity"])
def test_a_field_that_another_machine_would_read_differently_is_refused(field: str, define: Define) -> None:
    define("keys", conn_type="aws", extra={field: "x"})
    define(extra={"iam": True, "aws_conn_id": "keys"})
    with pytest.raises(ConfigurationError, match=f"connection 'keys': the field {field}"):
        open_hook("shop").settings()


def test_google_and_azure_connections_give_their_credentials(define: Define) -> None:
    define("cloud", conn_type="google_cloud_platform", extra={"keyfile_dict": '{"private_key": "s3cret"}'})
    define(extra={"iam": True, "gcp_conn_id": "cloud"})
    settings = open_hook("shop").settings()
    assert (settings.auth, settings.credentials) == ("cloudsql_iam", {"key": '{"private_key": "s3cret"}'})
    define("cloud", conn_type="azure", login="client", password="s3cret", extra={"tenantId": "tenant"})
    define(extra={"iam": True, "azure_conn_id": "cloud"})
    settings = open_hook("shop").settings()
    assert settings.auth == "entra"
    assert settings.credentials == {"client_id": "client", "client_secret": "s3cret", "tenant_id": "tenant"}
    define("cloud", conn_type="azure", extra={"managed_identity_client_id": "identity"})
    assert open_hook("shop").settings().credentials == {"managed_identity_client_id": "identity"}


@pytest.mark.parametrize("conn_type", ["cdc_mysql", "cdc_postgres"])
@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({}, "the server's identity is not verified"),
        ({"tls_mode": "required"}, "the server's identity is not verified"),
        ({"tls_mode": "preferred", "tls_trusted_network": True}, "tls_mode is preferred"),
        ({"tls_mode": "disabled", "tls_trusted_network": True}, "tls_mode is disabled"),
    ],
)
def test_no_token_is_sent_without_tls_or_to_a_server_that_has_not_proved_itself(
    conn_type: str, tls: dict[str, object], message: str, define: Define
) -> None:
    define(conn_type=conn_type, schema="shop", host="192.0.2.1", extra={"iam": True, "region_name": "x", **tls})
    works, said = open_hook("shop").test_connection()
    assert not works
    assert message in said
