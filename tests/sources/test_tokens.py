"""Tokens from stand-ins for the services of the clouds: what is asked for, and what their refusals become."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from traceback import TracebackException
from urllib.parse import parse_qs, urlsplit

import botocore.session
import pytest
from cryptography.hazmat.primitives import serialization

from airflow_provider_cdc.errors import ConfigurationError, LoginRefused, SourceUnavailable
from airflow_provider_cdc.sources import tokens
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.tokens import CLOUDSQL_IAM, ENTRA, RDS_IAM, password_of
from harness.token_gate import RdsTokens
from tests.sources.lying_server import KEY

HOST, PORT, REGION = "shop.c0ffee.eu-central-1.rds.amazonaws.com", 5432, "eu-central-1"
KEYS = {"access_key": "AKIA", "secret_key": "s3cret/+=", "region": REGION}
ARGUMENTS = {"ExternalId": "lake", "RoleSessionName": "airflow_keys", "DurationSeconds": 900, "Policy": "{}"}
ROLE = {**KEYS, "role_arn": "arn:aws:iam::123456789012:role/copier", "role_arguments": json.dumps(ARGUMENTS)}
PRIVATE_KEY = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
Answer = Callable[[str, dict[str, list[str]]], tuple[int, str]]


def settings(auth: str, **credentials: str) -> ConnectionSettings:
    return ConnectionSettings("postgres", HOST, PORT, "cdc@x y", database="shop", auth=auth, credentials=credentials)


@contextmanager
def service(answer: Answer) -> Iterator[str]:
    """Serve ``answer``, which gets the path and the parameters of a request, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(parse_qs(urlsplit(self.path).query))

        def do_POST(self) -> None:
            self._answer(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))

        def _answer(self, parameters: dict[str, list[str]]) -> None:
            status, body = answer(urlsplit(self.path).path, parameters)
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/xml")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without cached credentials and without an identity of this machine."""
    for cached in (tokens._aws_credentials, tokens._google_credentials, tokens._azure_credentials):
        cached.cache_clear()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def accepted(token: str, secrets: dict[str, str]) -> bool:
    check = RdsTokens(secrets, REGION, 60)
    check.endpoint = f"{HOST}:{PORT}"
    return check("cdc@x y", token)


def test_a_token_of_rds_is_signed_as_that_of_the_official_client() -> None:
    token = password_of(settings(RDS_IAM, **KEYS, session_token="session"))
    assert accepted(token, {"AKIA": KEYS["secret_key"]})
    assert not accepted(token, {"AKIA": "another"})
    client = botocore.session.Session().create_client(
        "rds", REGION, aws_access_key_id="AKIA", aws_secret_access_key="s3cret/+=", aws_session_token="session"
    )
    official = client.generate_db_auth_token(HOST, PORT, "cdc@x y")
    ours, theirs = (parse_qs(urlsplit(f"https://{one}").query) for one in (token, official))
    for moment in ("X-Amz-Date", "X-Amz-Signature"):
        assert ours.pop(moment)
        assert theirs.pop(moment)
    assert ours == theirs


def sts(valid_seconds: float, asked: list[dict[str, list[str]]]) -> Answer:
    def answer(path: str, parameters: dict[str, list[str]]) -> tuple[int, str]:
        asked.append(parameters)
        if parameters["RoleArn"] != [ROLE["role_arn"]]:
            error = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"
            return 403, f"<ErrorResponse>{error}</ErrorResponse>"
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=valid_seconds)
        keys = f"<AccessKeyId>ASIA{len(asked)}</AccessKeyId><SecretAccessKey>temporary</SecretAccessKey>"
        more = f"<SessionToken>t</SessionToken><Expiration>{expires.isoformat()}</Expiration>"
        found = f"<AssumeRoleResult><Credentials>{keys}{more}</Credentials></AssumeRoleResult>"
        return 200, f"<AssumeRoleResponse>{found}</AssumeRoleResponse>"

    return answer


def test_a_role_is_assumed_again_only_when_its_credentials_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, list[str]]] = []
    for seconds, calls in ((3600, 1), (60, 3)):
        asked.clear()
        tokens._aws_credentials.cache_clear()
        with service(sts(seconds, asked)) as address:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
            names = {"ASIA1": "temporary", "ASIA2": "temporary", "ASIA3": "temporary"}
            assert all(accepted(password_of(settings(RDS_IAM, **ROLE)), names) for _ in range(3))
        assert len(asked) == calls
        assert {name: asked[0][name] for name in ARGUMENTS} == {name: [str(ARGUMENTS[name])] for name in ARGUMENTS}


def test_what_aws_refuses_or_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with service(sts(60, [])) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
        another = settings(RDS_IAM, **{**ROLE, "role_arn": "arn:aws:iam::123456789012:role/another"})
        with pytest.raises(LoginRefused, match="AWS gives no token to log in: AccessDenied: not you") as refused:
            password_of(another)
        shown = TracebackException.from_exception(refused.value, capture_locals=True)
        assert KEYS["secret_key"] not in "".join(shown.format())
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    tokens._aws_credentials.cache_clear()
    with pytest.raises(SourceUnavailable, match="AWS gave no token to log in: Could not connect"):
        password_of(settings(RDS_IAM, **ROLE))
    with pytest.raises(ConfigurationError, match="this process has no credentials for AWS"):
        password_of(settings(RDS_IAM, region=REGION))


def google_key(address: str, private_key: str = PRIVATE_KEY) -> str:
    account = {"client_email": "copier@shop.iam.gserviceaccount.com", "token_uri": f"{address}/token"}
    return json.dumps({"type": "service_account", **account, "private_key": private_key, "private_key_id": "1"})


def test_a_service_account_of_google_gets_a_new_token_when_the_last_one_ends() -> None:
    asked: list[str] = []
    lives = iter((3600, 2, 2))

    def answer(path: str, parameters: dict[str, list[str]]) -> tuple[int, str]:
        asked.append(parameters["grant_type"][0])
        return 200, json.dumps({"access_token": f"token {len(asked)}", "expires_in": next(lives)})

    for expected in (["token 1", "token 1"], ["token 2", "token 3"]):
        with service(answer) as address:
            given = settings(CLOUDSQL_IAM, key=google_key(address))
            assert [password_of(given), password_of(given)] == expected


def test_what_google_refuses_shows_no_part_of_the_key() -> None:
    with service(lambda *_: (400, '{"error": "invalid_grant"}')) as address:
        cases = [google_key(address), google_key(address, "-----BEGIN PRIVATE KEY-----\ns3cret")]
        for key in cases:
            with pytest.raises(LoginRefused, match="Google gives no token") as refused:
                password_of(settings(CLOUDSQL_IAM, key=key))
            assert "s3cret" not in str(refused.value)
            assert refused.value.__suppress_context__


def test_a_managed_identity_of_microsoft_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(path: str, parameters: dict[str, list[str]]) -> tuple[int, str]:
        assert parameters["resource"] == ["https://ossrdbms-aad.database.windows.net"]
        asked.append(parameters.get("client_id", [""])[0])
        return 200, json.dumps({"access_token": "entra", "expires_on": "4102444800", "token_type": "Bearer"})

    asked: list[str] = []
    with service(answer) as address:
        monkeypatch.setenv("IDENTITY_ENDPOINT", address)
        monkeypatch.setenv("IDENTITY_HEADER", "x")
        given = settings(ENTRA, managed_identity_client_id="copier")
        assert [password_of(given), password_of(given)] == ["entra", "entra"]
    assert asked == ["copier"]


@pytest.mark.parametrize(
    ("auth", "package", "extra"),
    [(RDS_IAM, "botocore.auth", "aws"), (CLOUDSQL_IAM, "google.auth", "gcs"), (ENTRA, "azure.identity", "azure")],
)
def test_a_package_that_is_missing_is_named_with_the_command(
    auth: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match="needs a package that is not installed") as missing:
        password_of(settings(auth, **KEYS))
    assert f"pip install 'airflow-provider-cdc[{extra}]'" in missing.value.hint


def test_secrets_show_in_no_repr() -> None:
    assert KEYS["secret_key"] not in repr(settings(RDS_IAM, **KEYS))
