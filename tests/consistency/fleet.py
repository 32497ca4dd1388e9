"""Shards on two servers, whose rows also move from one server to the other, and their merged copies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.shards.union import REQUEST, MemberAsked, UnionRequest, UnionResult, union_folder
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.shards.unite import unite
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline
from harness.postgres_server import PostgresServer
from tests.consistency.shards import MERGED, TABLES, Row, Shards

Server = MysqlServer | PostgresServer


class Fleet:
    """The shards of several sources, and their merged copies in one lake."""

    def __init__(
        self, servers: Mapping[str, Server], spark: SparkSession, schema: str, folder: Path, **merging: Any
    ) -> None:
        merging = {"origin_columns": True, **merging}
        self.parts = {
            source: Shards(server, spark, schema, folder / "lake" / "_sources", **merging)
            for source, server in servers.items()
        }
        self.target = Storage((folder / "lake").as_uri())
        self.unions = 0
        self._spark = spark

    def begin(self, source: str, refresh: str = "auto", **more: Any) -> tuple[Pipeline, Counter[Row]]:
        """Fix the position of one source, and return the run, with the rows of the source at this position. Nobody must
        write meanwhile."""
        shards = self.parts[source]
        run = shards.run(refresh, target=source, source_conn_id=source, **more)
        run.record()
        return run, Counter({(*row, source): count for row, count in shards.truth().items()})

    def unite(self, runs: Mapping[str, Pipeline], **more: Any) -> UnionResult:
        """Unite finished runs."""
        self.unions += 1
        return self.unite_again(runs, **more)

    def unite_again(self, runs: Mapping[str, Pipeline], **more: Any) -> UnionResult:
        """Make another try of the last union."""
        union_id = f"202601{self.unions:02}T000000Z-ffffffff"
        folder = union_folder(self.target, union_id)
        asked = tuple(MemberAsked(source, run.run.uri) for source, run in runs.items())
        records.write(folder, REQUEST, UnionRequest(union_id, self.target.uri, asked, **more))
        return unite(self._spark, folder)

    def night(self, refresh: str = "auto", **more: Any) -> tuple[UnionResult, Counter[Row]]:
        """Copy and unite all sources. Return the result, and the rows of all shards."""
        begun = {source: self.begin(source, refresh) for source in self.parts}
        for run, _ in begun.values():
            run.finish()
        truth = sum((rows for _, rows in begun.values()), Counter())
        return self.unite({source: run for source, (run, _) in begun.items()}, **more), truth

    def latest(self) -> dict[str, Any]:
        """The record of the latest merged copy."""
        data: dict[str, Any] = self.target.read_json(f"{MERGED}/_latest.json")
        return data

    def published(self, table: str = MERGED) -> Counter[Row]:
        """The rows of the latest merged copy, read without this package."""
        return self.rows(self.target.read_json(f"{table}/_latest.json")["path"])

    def rows(self, uri: str) -> Counter[Row]:
        """The rows of a merged copy, read without this package: the columns that it has."""
        rows = pq.read_table(Storage(uri).path())
        names = [name for name in ("k", "tag", "v", "_table", "_source") if name in rows.column_names]
        return Counter(zip(*(rows[name].to_pylist() for name in names), strict=True))

    def snapshots(self) -> list[str]:
        """The ids of the unions that have merged copies."""
        return [name.rpartition("=")[2] for name in self.target.folders(MERGED) if "snapshot=" in name]


MakeFleet = Callable[..., Fleet]


def position_of(run: Pipeline) -> str:
    """The position of a finished run, from its own result."""
    position: str = run.found["consolidate"]["position"]
    return position


def colliding(rows: Counter[Row]) -> set[tuple[int, str]]:
    """The keys that several shards have."""
    return {key for key, count in Counter((row[0], row[1]) for row in rows.elements()).items() if count > 1}


class FleetWriters:
    """A random history on each server. Rows also move between servers, in two transactions, and the second may come
    much later: the row is then there twice, or not at all."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._rng = random.Random(seed)
        self._where: dict[tuple[int, str], tuple[str, str]] = {}
        self._halves: list[tuple[str, str]] = []

    def write(self, count: int, *, finish: bool = False) -> None:
        """Execute transactions.

        :param finish: whether to end all moves.
        """
        for _ in range(count):
            self._act()
        while self._halves and (finish or self._rng.random() < 0.4):
            source, statement = self._halves.pop(0)
            self._fleet.parts[source].do(statement)

    def _act(self) -> None:
        rng = self._rng
        key = rng.randint(0, 20), rng.choice(("a", "A", "b ", "b"))
        there = self._where.get(key)
        to = rng.choice(list(self._fleet.parts)), rng.choice(list(TABLES))
        value = rng.randint(0, 99)
        insert = f"INSERT INTO {self._of(to)} (k, tag, v) VALUES ({key[0]}, '{key[1]}', {value})"
        if there is None:
            self._where[key] = to
            self._fleet.parts[to[0]].do(insert)
            return
        if any(f"({key[0]}, '{key[1]}'" in half or half.endswith(_where(key)) for _, half in self._halves):
            return
        delete = f"DELETE FROM {self._of(there)} {_where(key)}"
        if there == to:
            self._fleet.parts[to[0]].do(f"UPDATE {self._of(there)} SET v = {value} {_where(key)}")
            return
        self._where[key] = to
        if there[0] == to[0]:
            self._fleet.parts[to[0]].do(delete, insert)
            return
        halves = [(to[0], insert), (there[0], delete)]
        if rng.random() < 0.4:
            halves.reverse()
        self._fleet.parts[halves[0][0]].do(halves[0][1])
        self._halves.append(halves[1])

    def _of(self, place: tuple[str, str]) -> str:
        return self._fleet.parts[place[0]].of(place[1])


def _where(key: tuple[int, str]) -> str:
    return f"WHERE k = {key[0]} AND tag = '{key[1]}'"
