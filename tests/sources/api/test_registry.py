"""Each kind of database is registered once, and each of its capabilities works when it is requested."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_provider_cdc.core.options.arguments import declared
from airflow_provider_cdc.core.positions import kinds as core_kinds
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.registry import KINDS, SourceKind, kind_of, open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_what_its_source_and_its_hook_say_it_is(kind: SourceKind) -> None:
    source = open_source(ConnectionSettings(kind.name, "nowhere.invalid", 1, "nobody"))
    assert source.kind == kind.name
    hook = kind.load(kind.hook)("shop")
    assert hook.conn_type == kind.connection_types[0]
    assert hook.kind is kind


def test_what_core_says_of_kinds_is_what_is_registered() -> None:
    """`core` must not use the registry: options declare their kinds, and heads of old copies have no kind."""
    assert set(core_kinds.KINDS) == {kind.name for kind in KINDS}
    assert all(core_kinds.kinds_with(option.feature) for option in declared())
    keys = {kind.name: kind.load(kind.source).position_key for kind in KINDS}
    assert keys == {name: kind.position_key for name, kind in core_kinds.KINDS.items()}


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named() -> None:
    for refused in (lambda: kind_of("oracle"), lambda: open_source(ConnectionSettings("oracle", "x", 1, "x"))):
        with pytest.raises(ConfigurationError, match=r"(?s)oracle.*cdc_mysql, mysql, cdc_postgres or postgres"):
            refused()


def test_mysql_is_copied_where_nothing_of_postgresql_is_installed() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = sys.modules['adbc_driver_postgresql'] = None\n"
        "from airflow_provider_cdc.errors import ConfigurationError\n"
        "from airflow_provider_cdc.sources.api.source import ConnectionSettings\n"
        "from airflow_provider_cdc.sources.api.registry import open_source\n"
        "open_source(ConnectionSettings('mysql', 'x', 1, 'x'))\n"
        "try: open_source(ConnectionSettings('postgres', 'x', 1, 'x'))\n"
        "except ConfigurationError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "the dependencies of PostgreSQL are not installed" in said
    assert "pip install 'airflow-provider-cdc[postgres]'" in said
