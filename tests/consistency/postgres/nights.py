"""Nightly copies of one server, each compared with a copy that is read anew at the same position, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_cdc.core import row_bytes
from airflow_provider_cdc.core.storage import Storage
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer

FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL"

Bytes = list[bytes]


class Nights:
    """Copies of the schema public in one lake, one after the other."""

    def __init__(self, server: PostgresServer, spark: SparkSession, folder: Path) -> None:
        self.server = server
        self.spark = spark
        self.folder = folder
        self.number = 0

    def do(self, *statements: str) -> None:
        with self.server.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def ask(self, sql: str) -> Any:
        return self.server.query(sql)[0][0]

    def night(self, refresh: str = "changes", tables: Sequence[str] = ("public.*",), **more: Any) -> Pipeline:
        """The next run; it is not begun yet."""
        self.number += 1
        run_id = f"202601{self.number:02}T000000Z-00000000"
        settings, lake = settings_of(self.server), (self.folder / "lake").as_uri()
        options = {"refresh": refresh, "standing_slot": "night", **more}
        return Pipeline(self.spark, settings, lake, tables, run_id=run_id, **options)

    def first(self) -> None:
        run = self.night("full")
        run.record()
        run.finish()

    def rolled(self, **more: Any) -> dict[str, Any]:
        """Roll forward, and compare with a copy that is read anew."""
        run = self.night(**more)
        run.record()
        assert {bool(plan.base) for plan in run.plans} == {True}
        found = run.finish()
        assert run.found["snapshot"]["rows"] == 0
        self.check(found["published"])
        return found

    def check(self, tables: dict[str, str], patterns: Sequence[str] = ("public.*",)) -> None:
        """Compare with a copy that is read anew; nothing is written meanwhile."""
        lake = (self.folder / f"anew-{self.number}").as_uri()
        anew = Pipeline(self.spark, settings_of(self.server), lake, patterns)
        anew.record()
        wanted = anew.finish()["published"]
        assert tables.keys() == wanted.keys()
        for name in tables:
            assert sorted(contents(tables[name])) == sorted(contents(wanted[name])), f"night {self.number}, {name}"


def contents(uri: str) -> Bytes:
    """The bytes of all rows of a copy."""
    folder = Storage(uri)
    found: Bytes = []
    for name in folder.files():
        for batch in pq.read_table(folder.path(name)).combine_chunks().to_batches():
            found += row_bytes.encode(batch, batch.schema.names).to_pylist()
    return found
