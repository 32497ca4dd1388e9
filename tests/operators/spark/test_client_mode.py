"""What `check_spark` refuses before an application starts, and what it must not refuse."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_cdc.compat import master_of_connection
from airflow_provider_cdc.errors import CdcError, ConfigurationError, SparkFailed
from airflow_provider_cdc.jobs.runtime.java_errors import hint_for, last_cause
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher

NO_HOST = "no-such-host.invalid"


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", **fields}))


def check(properties: Mapping[str, Any] | None = None, *, here: bool = True) -> None:
    check_spark(open_launcher("spark", properties or {}), here=here)


def check_master_answers() -> None:
    open_launcher("spark", {}).check_reachable()


def refusal(properties: Mapping[str, Any] | None = None) -> str:
    """The text of the refusal; empty if Spark may start."""
    try:
        check(properties)
    except CdcError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    connect(monkeypatch, host="local[2]")


@pytest.mark.parametrize(
    ("fields", "master"),
    [
        ({"host": "local"}, "local"),
        ({"host": "local[*]"}, "local[*]"),
        ({"host": "local[2,3]"}, "local[2,3]"),
        ({"host": "spark://a.b", "port": 7077}, "spark://a.b:7077"),
        ({"host": "spark://a:7077,b:7077"}, "spark://a:7077,b:7077"),
        ({"host": "spark://[::1]:7077"}, "spark://[::1]:7077"),
    ],
)
def test_masters_that_spark_knows_are_accepted(
    fields: dict[str, Any], master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, **fields)
    check()
    assert master_of_connection(SparkSubmitHook(conn_id="spark")) == master


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"host": "spark-master"}, "cannot use the master 'spark-master'"),
        ({"host": "spark://m"}, "cannot use the master 'spark://m'"),
        ({"host": "spark://spark_master", "port": 7077}, "cannot use the master"),
        ({"host": "local [2]"}, "cannot use the master 'local [2]'"),
        ({"host": "local[2] "}, "cannot use the master"),
        ({"host": "local[0]"}, "cannot use the master"),
        ({"host": "local[2]", "port": 80}, "cannot use the master"),
        ({"host": "sc://m:15002"}, "cannot use the master"),
        ({"host": ""}, "has no host"),
        ({}, "has no host"),
        ({"host": "m", "conn_type": "http"}, "has the type http"),
        ({"host": "local", "extra": {"spark-binary": "other-submit"}}, "Spark hook refuses it"),
    ],
)
def test_masters_that_spark_cannot_use_are_refused(
    fields: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, **fields)
    assert what in refusal()


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"spark.driver.memory": "449m"}, "less than Spark needs"),
        ({"spark.driver.memory": "512"}, "a number without a unit is in bytes"),
        ({"spark.driver.memory": "512mb"}, "is not a size for Java"),
        ({"spark.driver.memory": "450m"}, ""),
        ({"spark.driver.memory": "1G"}, ""),
        ({"spark.task.cpus": "3"}, "each task would take 3 cores, but an executor has 2"),
        ({"spark.task.cpus": 2}, ""),
        ({"spark.remote": "sc://m"}, "Spark Connect"),
        ({"spark.driver.bindAddress": "192.0.2.7"}, "not an address of this worker"),
        ({"spark.driver.bindAddress": "0.0.0.0", "spark.driver.host": NO_HOST}, ""),
        ({"spark.driver.host": NO_HOST}, "does not resolve"),
        ({"spark.eventLog.enabled": "true", "spark.eventLog.dir": "file:///nowhere/events"}, "is not a folder"),
        ({"spark.eventLog.enabled": "true", "spark.eventLog.dir": "/nowhere/events"}, "is not a folder"),
        ({"spark.eventLog.enabled": "false", "spark.eventLog.dir": "/nowhere/events"}, ""),
        ({"spark.eventLog.enabled": "true", "spark.eventLog.dir": "s3a://bucket/events"}, ""),
        ({"spark.eventLog.enabled": True, "spark.eventLog.dir": "file:/tmp"}, ""),
    ],
)
def test_properties_with_which_spark_does_not_start_are_refused(properties: dict[str, Any], what: str) -> None:
    text = refusal(properties)
    assert what in text
    assert bool(text) == bool(what)


def test_cores_of_executors_are_known_only_if_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, host="spark://m", port=7077)
    assert refusal({"spark.task.cpus": "4"}) == ""
    assert "an executor has 2" in refusal({"spark.task.cpus": "4", "spark.executor.cores": "2"})


def test_airflows_own_connection_without_a_yarn_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect(monkeypatch, host="yarn", extra={"queue": "root.default"})
    assert "local[4] needs no cluster" in refusal()
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert refusal() == ""
    monkeypatch.delenv("YARN_CONF_DIR")
    # Spark reads this file, which may set the variable.
    (tmp_path / "spark-env.sh").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert refusal() == ""


def java(folder: Path, script: str) -> str:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo 'openjdk version \"11.0.22\" 2024-01-16' >&2", "is Java 11, but Spark 4 needs Java 17"),
        ("echo 'java version \"1.8.0_401\"' >&2", "is Java 8, but"),
        ("echo 'openjdk version \"25-ea\" 2025-09-16' >&2", ""),
        ("echo 'a Java of an unknown vendor'", ""),
        ("echo 'Unrecognized option: -XX:+Nope' >&2; exit 1", "Unrecognized option: -XX:+Nope"),
    ],
)
def test_a_java_that_is_too_old_is_refused(
    script: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, script))
    text = refusal()
    assert what in text
    assert bool(text) == bool(what)


def test_no_java_and_a_wrong_java_home_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"there is no program {tmp_path}/bin/java" in refusal()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no Java on this worker" in refusal()


def test_another_spark_in_spark_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "where no Spark is installed" in refusal()
    for folder, file in (("bin", "spark-class"), ("jars", "spark-core_2.12-3.5.1.jar")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    assert "has Spark 3.5.1, but Spark 4 is needed" in refusal()
    (tmp_path / "jars/spark-core_2.12-3.5.1.jar").rename(tmp_path / "jars/spark-core_2.13-4.0.2.jar")
    assert refusal() == ""


def test_all_problems_are_told_at_once_and_local_ones_only_where_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, host="local[2]", port=1)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    text = refusal({"spark.remote": "sc://m"})
    assert "3 problems" in text
    connect(monkeypatch, host="local[2]")
    check(here=False)


def test_a_master_that_does_not_answer_is_told_and_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect(monkeypatch, host="spark://127.0.0.1", port=port)
        check_master_answers()
        connect(monkeypatch, host=f"spark://127.0.0.1:1,127.0.0.1:{port}")
        check_master_answers()
    connect(monkeypatch, host="spark://127.0.0.1", port=port)
    with pytest.raises(SparkFailed, match=f"127.0.0.1:{port}: .*refused"):
        check_master_answers()
    connect(monkeypatch, host=f"spark://{NO_HOST}", port=7077)
    with pytest.raises(SparkFailed, match=NO_HOST):
        check_master_answers()
    connect(monkeypatch, host="local[2]")
    check_master_answers()


def test_a_user_without_a_name_cannot_send_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert refusal() == ""
    assert refusal({"spark.jars": "local:/opt/a.jar"}) == ""
    with pytest.raises(ConfigurationError, match=r"spark\.jars\.packages: the user id 54321 has no entry"):
        check({"spark.jars.packages": "a:b:1"})


LOGIN = """py4j.protocol.Py4JJavaError: An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.io.IOException: Invalid UID, could not determine effective user
\tat a.B.c(D.java:1)
Caused by: javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name
\t... 21 more"""
HOST_NAME = """Exception in thread "main" java.lang.ExceptionInInitializerError
\tat a.B.c(D.java:1)
Caused by: java.net.UnknownHostException: box: box: Name or service not known"""
PYTHON = """Py4JJavaError: An error occurred
: org.apache.spark.SparkException: Job aborted
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File x"""


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        (LOGIN, "LoginException: invalid null input: name", "/etc/passwd"),
        (HOST_NAME, "UnknownHostException: box: box: Name or service not known", "resolves"),
        (PYTHON, "SparkException: Job aborted", ""),
        ("no Java here: at all", "", ""),
    ],
)
def test_the_last_cause_of_java_is_shown_with_what_to_do(text: str, cause: str, hint: str) -> None:
    assert last_cause(text) == cause
    found = hint_for(text.splitlines())
    assert hint in found
    assert bool(found) == bool(hint)
