"""MySQL connections in the forms that users write, and how their TLS settings and passwords are read."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_cdc.check_server import main
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.mysql import CdcMysqlHook
from harness.mysql_server import MysqlServer

Connect = Callable[..., None]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Defines the connection ``shop``."""

    def define(**fields: Any) -> None:
        defaults = {"conn_type": "cdc_mysql", "host": "db.example.com", "login": "cdc", "password": "s3cret:/@"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**defaults, **fields}))

    return define


def test_both_types_of_connection_reach_the_same_hook(connection: Connect) -> None:
    for conn_type in ("cdc_mysql", "mysql"):
        connection(conn_type=conn_type)
        hook = open_hook("shop")
        assert isinstance(hook, CdcMysqlHook)
        settings = hook.settings()
        assert (settings.kind, settings.address) == ("mysql", "cdc@db.example.com:3306")
        assert settings.password == "s3cret:/@"
        assert settings.tls == {}


def test_password_shows_in_no_repr_of_source_or_settings(connection: Connect) -> None:
    connection()
    hook = open_hook("shop")
    for thing in (hook, hook.settings(), hook.get_conn()):
        assert "s3cret" not in repr(thing)


def test_source_survives_the_way_to_an_executor(connection: Connect) -> None:
    connection(port=4000)
    source = open_hook("shop").get_conn()
    assert vars(pickle.loads(pickle.dumps(source))) == vars(source)


def test_form_fields_are_the_tls_settings(connection: Connect) -> None:
    connection(extra={"tls_mode": "verify_ca", "tls_ca": "/etc/ca.pem", "tls_cert": "", "tls_key": None})
    assert open_hook("shop").settings().tls == {"mode": "verify_ca", "ca": "/etc/ca.pem"}


def test_misspelt_tls_field_is_refused_and_not_an_unencrypted_connection(connection: Connect) -> None:
    connection(extra={"tls_mod": "required"})
    with pytest.raises(ConfigurationError, match="tls_mod"):
        open_hook("shop").settings()


@pytest.mark.parametrize("ssl", [{"ca": "/ca.pem", "cipher": "x"}, '{"ca": "/ca.pem"}'])
def test_stock_connection_keeps_its_tls_settings(connection: Connect, ssl: object) -> None:
    connection(conn_type="mysql", extra={"ssl": ssl, "ssl_mode": "VERIFY_IDENTITY", "charset": "utf8"})
    assert open_hook("shop").settings().tls == {"ca": "/ca.pem", "mode": "verify_identity"}


@pytest.mark.parametrize("field", CdcMysqlHook.stock_refused)
def test_a_stock_connection_that_leads_elsewhere_is_refused(connection: Connect, field: str) -> None:
    connection(conn_type="mysql", extra={field: "/run/mysqld/mysqld.sock"})
    with pytest.raises(ConfigurationError, match=f"unsupported connection extras: {field}"):
        open_hook("shop").settings()


def test_stock_connection_with_unreadable_tls_settings_is_refused(connection: Connect) -> None:
    connection(conn_type="mysql", extra={"ssl": "yes"})
    with pytest.raises(ConfigurationError, match="ssl"):
        open_hook("shop").settings()


@pytest.mark.parametrize("field", ["host", "login"])
def test_connection_without_host_or_user_is_refused(connection: Connect, field: str) -> None:
    connection(**{field: ""})
    with pytest.raises(ConfigurationError, match=f"has no {field}"):
        open_hook("shop").settings()


def test_missing_connection_and_wrong_type_name_the_hint(connection: Connect) -> None:
    with pytest.raises(ConfigurationError, match="the connection does not exist") as missing:
        open_hook("nowhere")
    assert "cdc_mysql" in missing.value.hint
    connection(conn_type="http")
    with pytest.raises(ConfigurationError, match="'http'"):
        open_hook("shop")


def test_connection_test_says_what_answers_or_why_not(connection: Connect, mysql: MysqlServer) -> None:
    connection(host=mysql.host, port=mysql.port, login="root", password="")
    answers, said = open_hook("shop").test_connection()
    assert answers
    assert f"root@127.0.0.1:{mysql.port}" in said
    connection(host=mysql.host, port=mysql.port, login="root", password="s3cret")
    answers, said = open_hook("shop").test_connection()
    assert not answers
    assert "password" in said
    assert "s3cret" not in said


def test_connection_test_says_what_the_user_and_the_server_lack(connection: Connect, mysql: MysqlServer) -> None:
    mysql.query("CREATE USER tester@localhost IDENTIFIED BY 's3cret'")
    try:
        connection(host=mysql.host, port=mysql.port, login="tester", password="s3cret")
        works, said = open_hook("shop").test_connection()
        assert not works
        assert said.startswith(f"MySQL {mysql.query('SELECT @@version')[0][0]} at tester@127.0.0.1")
        for privilege in ("REPLICATION CLIENT", "REPLICATION SLAVE"):
            assert f"Hint: GRANT {privilege} ON *.* TO" in said
        # The UI makes one paragraph of it.
        assert re.search(r"\. \(2\) REPLICATION SLAVE: .*\. Hint: GRANT", " ".join(said.split()))
        mysql.query("GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO tester@localhost")
        assert open_hook("shop").test_connection()[0]
        mysql.query("SET GLOBAL binlog_format = MIXED")
        works, said = open_hook("shop").test_connection()
        assert not works
        assert "binlog_format: is MIXED" in said
        assert "Hint: SET PERSIST binlog_format = ROW" in said
    finally:
        mysql.query("SET GLOBAL binlog_format = ROW")
        mysql.query("DROP USER tester@localhost")


@pytest.mark.parametrize("conn_type", ["cdc_mysql", "mysql"])
def test_what_protects_the_password_is_waived_only_by_name_and_not_in_silence(
    conn_type: str, connection: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(**fields: Any) -> list[str]:
        caplog.clear()
        connection(conn_type=conn_type, **fields)
        open_hook("shop").settings()
        return [record.getMessage() for record in caplog.records]

    mode = "ssl_mode" if conn_type == "mysql" else "tls_mode"
    key = {"tls_server_key": "/etc/mysql/public_key.pem"}
    for unsafe in ("preferred", "disabled"):
        (said,) = warnings(extra={mode: unsafe})
        assert f"tls_mode is {unsafe}" in said
        assert "s3cret" not in said
    (said,) = warnings(extra={"tls_trusted_network": True, **key})
    assert "tls_trusted_network" in said
    assert open_hook("shop").settings().tls == {"trusted_network": "True", "server_key": key["tls_server_key"]}
    for quiet in ({}, {mode: "required"}, key, {"tls_trusted_network": False}):
        assert warnings(extra=quiet) == []
    assert warnings(host="127.0.0.1", extra={mode: "disabled"}) == []


def test_the_command_check_server_takes_a_connection(
    mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f"cdc-mysql://root@{mysql.host}:{mysql.port}/")
    assert main(["--source-conn-id", "shop"]) == 0
    assert "differences: none" in capsys.readouterr().out
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "cdc-postgres://root@127.0.0.1/")
    assert main(["--source-conn-id", "shop"]) == 2
