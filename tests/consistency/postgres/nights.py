"""Nightly copies of one server, each compared bit for bit with a full copy at the same position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer
from tests.consistency.comparing import assert_same_copies

FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL"


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
        """Roll forward, and compare with a full copy."""
        run = self.night(**more)
        run.record()
        assert {bool(plan.base) for plan in run.plans} == {True}
        found = run.finish()
        assert run.found["snapshot"]["rows"] == 0
        self.check(found["published"])
        return found

    def check(self, tables: dict[str, str], patterns: Sequence[str] = ("public.*",)) -> None:
        """Compare with a full copy; nothing is written in the meantime."""
        lake = (self.folder / f"anew-{self.number}").as_uri()
        anew = Pipeline(self.spark, settings_of(self.server), lake, patterns)
        anew.record()
        wanted = anew.finish()["published"]
        assert_same_copies(tables, wanted, f"night {self.number}")
