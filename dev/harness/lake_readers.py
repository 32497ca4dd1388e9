"""Engines that read lakes, for tests and demos: they share no code with the package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import duckdb

EXTENSIONS = ("avro", "httpfs", "iceberg")


def opened_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads Iceberg tables. Its extensions come from packages, so it needs no network."""
    connection = duckdb.connect()
    for name in EXTENSIONS:
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        (file,) = package.glob(f"extensions/*/{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection
