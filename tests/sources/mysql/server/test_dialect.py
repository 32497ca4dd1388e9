"""The table of versions says what the release notes say, and has everything that the package sends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc import sources
from airflow_provider_cdc.sources.mysql.server.dialect import (
    AURORA,
    CLOUD_SQL,
    FEATURES,
    RDS,
    SELF_MANAGED,
    TABLES,
    VARIABLES,
    Service,
    Version,
    service_of,
    statement,
)
from airflow_provider_cdc.sources.mysql.server.session import PINNED, pinned

RELEASE_NOTES: list[tuple[Version, str, bool]] = [
    ((8, 1, 0), "SHOW BINARY LOG STATUS", False),
    ((8, 2, 0), "SHOW BINARY LOG STATUS", True),
    ((8, 2, 0), "SHOW MASTER STATUS", True),
    ((8, 3, 0), "SHOW MASTER STATUS", True),
    ((8, 4, 0), "SHOW MASTER STATUS", False),
    ((8, 0, 26), "SHOW REPLICA STATUS", True),
    ((8, 0, 28), "binlog_expire_logs_auto_purge", False),
    ((8, 0, 29), "binlog_expire_logs_auto_purge", True),
    ((8, 0, 28), "TOTAL_ROW_VERSIONS", False),
    ((8, 0, 29), "TOTAL_ROW_VERSIONS", True),
    ((8, 0, 29), "show_gipk_in_create_table_and_information_schema", False),
    ((8, 0, 30), "show_gipk_in_create_table_and_information_schema", True),
    ((8, 2, 0), "GTIDs with tags", False),
    ((8, 3, 0), "GTIDs with tags", True),
    ((8, 4, 5), "mysql_native_password", True),
    ((9, 0, 0), "mysql_native_password", False),
    ((8, 4, 5), "the type VECTOR", False),
    ((9, 0, 0), "the type VECTOR", True),
    ((9, 5, 0), "innodb_native_foreign_keys", False),
    ((9, 6, 0), "innodb_native_foreign_keys", True),
]


@pytest.mark.parametrize(("version", "name", "there"), RELEASE_NOTES)
def test_which_version_has_what(version: Version, name: str, there: bool) -> None:
    (feature,) = [one for one in FEATURES if one.name == name]
    assert feature.known_to(version) is there


@pytest.mark.parametrize(
    ("version", "sent"),
    [
        ((8, 0, 26), "SHOW MASTER STATUS"),
        ((8, 0, 44), "SHOW MASTER STATUS"),
        ((8, 4, 0), "SHOW BINARY LOG STATUS"),
        ((9, 7, 0), "SHOW BINARY LOG STATUS"),
    ],
)
def test_the_statement_of_a_version(version: Version, sent: str) -> None:
    new, old = (
        next(one for one in FEATURES if one.name == f"SHOW {which} STATUS") for which in ("BINARY LOG", "MASTER")
    )
    assert statement(version, new, old) == sent


def test_a_session_sets_only_variables_that_the_server_has() -> None:
    later = {"show_gipk_in_create_table_and_information_schema"}
    assert set(PINNED) - set(pinned((8, 0, 26))) == later
    assert set(PINNED) == set(pinned((8, 0, 30)))


def _texts() -> Iterator[str]:
    for path in (Path(sources.__path__[0]) / "mysql").rglob("*.py"):
        if path.name != "dialect.py":
            yield path.read_text()


def _variables_read(module: ast.Module) -> Iterator[str]:
    """Yield the texts in the arguments of calls of ``variables``, and in the module's constants that these name."""
    assigned = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "variables":
            for part in (part for argument in call.args for part in ast.walk(argument)):
                named = assigned.get(part.id) if isinstance(part, ast.Name) else part
                # The keys of a dictionary are variables, and its values what they mean.
                texts = named.keys if isinstance(named, ast.Dict) else [named]
                for one in (one for text in texts if text is not None for one in ast.walk(text)):
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield one.value


def test_no_module_reads_what_the_table_lacks() -> None:
    """Otherwise, nobody has looked up which versions have it."""
    text = "\n".join(_texts())
    tables = re.findall(r"(?:information_schema|performance_schema)\.[a-zA-Z_]+", text)
    assert {name for name in tables if name.lower() not in TABLES} == set()
    assert len(set(tables)) > 5
    variables = set(re.findall(r"@@(?:(?:global|session)\.)?([a-z_]+)", text, re.IGNORECASE)) - {"global", "SESSION"}
    shown_variables = {name for text in _texts() for name in _variables_read(ast.parse(text))}
    assert "old_alter_table" in shown_variables
    assert (variables | shown_variables) - set(VARIABLES) == set()
    shown = set(re.findall(r"\"(SHOW [A-Z ]+[A-Z])", text))
    known = {one.name for one in FEATURES}
    assert {text for text in shown if not any(text.startswith(name) for name in known)} == set()
    assert len(shown) > 4


def test_versions_are_compared_only_in_the_table() -> None:
    assert [text for text in _texts() if re.search(r"\((?:[89]|1\d), \d+, \d+\)", text)] == []


def test_every_difference_says_what_happens_without_it() -> None:
    assert [one.name for one in FEATURES if one.differs != bool(one.instead)] == []
    assert all(one.manual.startswith("https://dev.mysql.com/doc/") for one in FEATURES)


@pytest.mark.parametrize(
    ("version", "signs", "service"),
    [
        ("8.0.44", {"basedir": "/usr/"}, SELF_MANAGED),
        ("8.0.36-28", {"basedir": "/opt/percona/"}, SELF_MANAGED),
        ("8.0.36", {"basedir": "/rdsdbbin/mysql-8.0.36.R1/"}, RDS),
        ("8.0.28", {"basedir": "/rdsdbbin/oscar-8.0.mysql_aurora/", "aurora_version": "3.04.0"}, AURORA),
        ("8.0.31-google", {"basedir": "/usr/"}, CLOUD_SQL),
    ],
)
def test_which_service_runs_a_server(version: str, signs: dict[str, str], service: Service) -> None:
    assert service_of(version, signs) is service


HINTS = [
    (SELF_MANAGED, "log_bin", "start the server with log_bin = ON"),
    (SELF_MANAGED, "gtid_mode", "SET PERSIST gtid_mode = ON"),
    (SELF_MANAGED, "innodb_force_recovery", "start the server with innodb_force_recovery = ON"),
    (RDS, "log_bin", "enable automated backups"),
    (RDS, "gtid_mode", "set gtid_mode = ON in the parameter group of the instance"),
    (AURORA, "log_bin", "set binlog_format = ROW in the parameter group of the cluster"),
    (CLOUD_SQL, "log_bin", "enable point-in-time recovery"),
    (CLOUD_SQL, "gtid_mode", "set gtid_mode = ON as a database flag of the instance"),
]


@pytest.mark.parametrize(("service", "variable", "hint"), HINTS)
def test_a_hint_names_what_the_service_offers(service: Service, variable: str, hint: str) -> None:
    assert service.set(variable, "ON").startswith(hint)


def test_hints_that_keep_the_log() -> None:
    assert SELF_MANAGED.keep_log(90_000) == "SET PERSIST binlog_expire_logs_seconds = 90000"
    assert CLOUD_SQL.keep_log(60).startswith("set binlog_expire_logs_seconds = 86400 as a database flag")
    assert RDS.keep_log(90_000) == "CALL mysql.rds_set_configuration('binlog retention hours', 25)"
    assert AURORA.longer == "raise binlog retention hours (CALL mysql.rds_set_configuration)"
