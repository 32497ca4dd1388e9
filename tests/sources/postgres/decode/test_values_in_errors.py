"""The server's errors about values: they must not carry values of withheld columns into logs."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest

from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import TerminalError
from airflow_provider_cdc.sources.postgres.chunking.chunks import plan_chunks
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.steps.chunk_reader import open_reader
from harness.pipeline import settings_of
from tests.conftest import PostgresFactory
from tests.sources.postgres.catalog_reading import read_tables


def test_a_virtual_column_that_cannot_be_computed_does_not_show_the_withheld_one(
    postgres_factory: PostgresFactory,
) -> None:
    server = postgres_factory(None, 18)
    server.query("CREATE TABLE t (id int PRIMARY KEY, secret text, n int GENERATED ALWAYS AS (secret::int))")
    server.query("INSERT INTO t VALUES (1, '7'), (2, 'Withheld')")
    settings = settings_of(server)
    with session(settings) as connection:
        (table,) = read_tables(connection, [TableName("public", "t")])
        (chunk,) = plan_chunks(connection, table, 100)
    table = replace(table, selection=selection_of(None, ["n"]))
    with pytest.raises(TerminalError, match="22P02") as caught, open_reader(settings, table, "again", None) as reader:
        list(reader.read(chunk))
    assert "Withheld" not in "".join(traceback.format_exception(caught.value))
