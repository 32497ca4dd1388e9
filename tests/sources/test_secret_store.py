"""Passwords that the connection only names, from a stand-in for the secret stores of AWS and Google."""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from airflow_provider_cdc.errors import CdcError, ConfigurationError, LoginRefused, SourceUnavailable
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.sources import secret_store
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.users_code import own_path
from airflow_provider_cdc.sources.postgres.server.session import reading_session, session
from airflow_provider_cdc.sources.tokens import password_of
from harness.secret_service import ARN, TOKEN, VERSION, SecretService, secret_service
from tests.sources.lying_server import KEY

PASSWORD = "corr3ct-horse"


@contextmanager
def store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretService]:
    """A store that this process can reach."""
    secret_store._kept.clear()
    secret_store._aws_client.cache_clear()
    with secret_service({name: PASSWORD}, "AKIAMACHINE" if name == ARN else TOKEN) as service:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMACHINE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", service.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        pem = KEY.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {"type": "service_account", "client_email": "machine@x", "token_uri": f"{service.url}/token"}
        key = tmp_path / "key.json"
        key.write_text(json.dumps({**account, "private_key": pem.decode()}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.setattr(secret_store, "GOOGLE_URL", f"{service.url}/v1")
        yield service


def settings(reference: str) -> ConnectionSettings:
    return ConnectionSettings("mysql", "db.example.com", 3306, "cdc", secret_ref=reference)


def answer_of(reference: str, kind: type[CdcError]) -> str:
    with pytest.raises(kind) as raised:
        password_of(settings(reference))
    # No part of the secret, and no frame that has it.
    assert PASSWORD not in str(raised.value)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["answer_of", "password_of"]
    return str(raised.value)


@pytest.mark.parametrize("name", [ARN, VERSION])
def test_the_password_is_read_with_the_identity_of_the_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with store(name, tmp_path, monkeypatch) as service:
        assert password_of(settings(name)) == password_of(settings(name)) == PASSWORD
        assert len(service.read) == 1, "a session need not wait for the store each time"
        rds = {"username": "admin", "password": "from-json", "engine": "mysql", "host": "another", "port": 1}
        stored_as: list[tuple[str | bytes, str]] = [
            (json.dumps(rds), "from-json"),
            ("1234", "1234"),
            ("from-echo\r\n", "from-echo"),
            (b"binary\n", "binary"),
            ("[" * 100_000, "[" * 100_000),
        ]
        for stored, password in stored_as:
            service.secrets[name] = stored
            secret_store.forget(settings(name))
            assert password_of(settings(name)) == password
        secret_store.forget(settings(name))
        unusable: list[tuple[str | bytes, str]] = [
            (json.dumps({"pass": PASSWORD}), "without a text `password`"),
            (PASSWORD.encode() + b"\xff", "is not a text in UTF-8"),
            ("\n", "has an empty password"),
            ('{"password": ""}', "has an empty password"),
        ]
        for stored, why in unusable:
            service.secrets[name] = stored
            assert why in answer_of(name, ConfigurationError)
        # A store that is down fails the task for now, and one that refuses fails it for good.
        service.failures = 2
        for service.behind_proxy in (False, False, True):
            assert "the secret store does not answer" in answer_of(name, SourceUnavailable)
        service.behind_proxy = False
        service.reader = "another"
        assert "cannot read the password" in answer_of(name, ConfigurationError)
        service.reader = "AKIAMACHINE" if name == ARN else TOKEN
        service.secrets.clear()
        assert re.search("can't find|Secret .* not found", answer_of(name, ConfigurationError))
    # The clients log whole requests and answers.
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "urllib3" in logged
    assert not [one for one in (PASSWORD, base64.b64encode(PASSWORD.encode()).decode(), "from-json") if one in logged]


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_session_takes_the_new_password_after_the_server_has_refused_the_old_one(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, user = request.getfixturevalue(kind), f"rotated_{tmp_path.name[-8:]}"
    role = ("ROLE {0} LOGIN PASSWORD '{1}'" if kind == "postgres" else "USER '{0}' IDENTIFIED BY '{1}'").format
    locked = " FAILED_LOGIN_ATTEMPTS 2 PASSWORD_LOCK_TIME UNBOUNDED" if kind == "mysql" else ""
    server.query(f"CREATE {role(user, PASSWORD)}{locked}")
    shop = {"conn_type": f"cdc_{kind}", "host": server.host, "port": server.port, "login": user}
    shop["schema"] = "postgres" if kind == "postgres" else ""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**shop, "extra": {"secret_ref": ARN}}))
    found = open_hook("shop").settings()
    assert (found.password, found.secret_ref, found.auth, found.options) == ("", ARN, "", {})

    def rotate(password: str) -> str:
        server.query(f"ALTER {role(user, password)}")
        return password

    with store(ARN, tmp_path, monkeypatch) as service:
        assert open_source(found).check_server() is not None
        service.secrets[ARN] = rotate("second")
        assert open_source(found).check_server() is not None
        if kind == "postgres":
            service.secrets[ARN] = rotate("third")
            with reading_session(found):
                pass
            with session(found) as before:
                service.secrets[ARN] = rotate("fourth")
                assert own_path(before) == '"$user", public'
        reads = len(service.read)
        assert reads == (2 if kind == "mysql" else 4)
        rotate("fifth")
        with pytest.raises(LoginRefused):
            open_source(found).check_server()
        assert len(service.read) == reads + 1
        # A second wrong login would have locked the account.
        service.secrets[ARN] = "fifth"
        secret_store.forget(found)
        assert open_source(found).check_server() is not None
    server.query(f"DROP {role(user, '').partition(' ')[0]} {user}")


@pytest.mark.parametrize("conn_type", ["mysql", "postgres", "cdc_mysql", "cdc_postgres"])
@pytest.mark.parametrize(
    ("password", "extra", "message"),
    [
        ("", {"secret_ref": "lake/shop"}, "does not name a secret"),
        ("also", {"secret_ref": ARN}, "has secret_ref and a password"),
        ("", {"secret_ref": VERSION, "iam": True}, "has secret_ref and iam"),
    ],
)
def test_a_connection_has_one_way_to_log_in(
    conn_type: str, password: str, extra: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = {"conn_type": conn_type, "host": "db", "login": "cdc", "password": password, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))
    with pytest.raises(ConfigurationError, match=message):
        open_hook("shop").settings()
