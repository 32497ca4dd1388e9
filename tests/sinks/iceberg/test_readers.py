"""Readers in a loop while 100 runs publish: readers of cuts never see tables at two positions."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import polars as pl
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog import Catalog

from airflow_provider_cdc.lake import read_cut
from airflow_provider_cdc.sinks.iceberg.cut_table import Cut
from harness.lake_readers import opened_duckdb
from tests.interrupting import commits_fail
from tests.sinks.catalogs import plain_catalog
from tests.sinks.test_contract import LINES, ORDERS, SERVER, TABLES, Lake

PUBLICATIONS = 100
WITHDRAWN = 10
"""One of this number of publications also withdraws the copies before it from the cuts, as the option ``keep``
does."""


@cache
def duckdb() -> DuckDBPyConnection:
    """The DuckDB of this process."""
    return opened_duckdb()


def heads_by_pyiceberg(catalog: Catalog) -> list[set[int]]:
    return [set(catalog.load_table(str(table)).scan().to_arrow()["id"].to_pylist()) for table in TABLES]


def heads_by_polars(catalog: Catalog) -> list[set[int]]:
    return [set(pl.scan_iceberg(catalog.load_table(str(table))).collect()["id"]) for table in TABLES]


def heads_by_duckdb(catalog: Catalog) -> list[set[int]]:
    locations = [catalog.load_table(str(table)).metadata_location for table in TABLES]
    return [
        {one for (one,) in duckdb().execute(f"SELECT id FROM iceberg_scan('{location}')").fetchall()}
        for location in locations
    ]


def cut_by_pyiceberg(cut: Cut) -> list[set[int]]:
    return [set(cut[str(table)].to_arrow()["id"].to_pylist()) for table in TABLES]


def cut_by_polars(cut: Cut) -> list[set[int]]:
    return [set(cut[str(table)].to_polars().collect()["id"]) for table in TABLES]


def cut_by_duckdb(cut: Cut) -> list[set[int]]:
    orders, lines = (cut[str(table)].duckdb() for table in TABLES)
    joined = duckdb().execute(f"SELECT o.id, l.id FROM {orders} o FULL JOIN {lines} l ON true").fetchall()
    return [{pair[side] for pair in joined} for side in (0, 1)]


ENGINES: dict[str, tuple[Callable[[Catalog], list[set[int]]], Callable[[Cut], list[set[int]]]]] = {
    "duckdb": (heads_by_duckdb, cut_by_duckdb),
    "polars": (heads_by_polars, cut_by_polars),
    "pyiceberg": (heads_by_pyiceberg, cut_by_pyiceberg),
}
"""By engine: what readers of the plain tables see, and what readers of a cut see. Each list has the ids per table."""


def number_of(cut: Cut) -> int:
    return int(cut.position.removeprefix(f"{SERVER}:1-"))


def read_cuts(target: str, engine: str, answers: Connection) -> None:
    """Read the newest cut again and again, until it is that of the last publication. Runs in a process of its own."""
    seen: list[tuple[int, list[set[int]]]] = []
    while not seen or seen[-1][0] < PUBLICATIONS:
        cut = read_cut(target)
        assert cut is not None
        seen.append((number_of(cut), ENGINES[engine][1](cut)))
        if len(seen) == 1:
            answers.send("reads")
    answers.send(seen)


def stage(lake: Lake, number: int) -> Any:
    return lake.stage(number, run_id=f"20260101T{number:06}Z-00000000")


@pytest.mark.long
def test_readers_of_cuts_never_see_two_positions_and_readers_of_the_tables_do(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = [stage(lake, 1)]
    lake.sink.publish(published[0])
    between: list[tuple[int, list[set[int]], list[set[int]]]] = []

    def read_between(commit: Callable[[], Any], table: str) -> Any:
        """Before the second table's commit, read with one engine: the heads of both tables, and the newest cut."""
        if table == str(LINES):
            heads, cut_tables = ENGINES[sorted(ENGINES)[len(between) % len(ENGINES)]]
            cut = read_cut(lake.storage.uri)
            assert cut is not None
            between.append((number_of(cut), cut_tables(cut), heads(plain_catalog(lake.storage))))
        return commit()

    context = multiprocessing.get_context("spawn")
    readers = []
    for engine in sorted(ENGINES):
        answers, other_end = context.Pipe(duplex=False)
        process = context.Process(target=read_cuts, args=(lake.storage.uri, engine, other_end), daemon=True)
        process.start()
        # So that the end of the process also ends `recv`.
        other_end.close()
        readers.append((engine, process, answers))
    for _, _, answers in readers:
        assert answers.recv() == "reads"
    commits_fail(monkeypatch, read_between)
    for number in range(2, PUBLICATIONS + 1):
        published.append(stage(lake, number))
        lake.sink.publish(published[-1])
        if number % WITHDRAWN == 0:
            lake.sink.withdraw([(run.run_id, table) for run in published[:-1] for table in TABLES])
            del published[:-1]
    for engine, process, answers in readers:
        seen = answers.recv()
        process.join()
        assert {seen[0][0], seen[-1][0]} == {1, PUBLICATIONS}, engine
        torn = [(number, tables) for number, tables in seen if tables != [{number}, {number}]]
        assert not torn, (engine, torn[:3])
    assert len(between) == PUBLICATIONS - 1
    for number, (newest, cut_tables, heads) in enumerate(between, 2):
        assert (newest, cut_tables) == (number - 1, [{number - 1}] * 2)
        # This is why there are cuts.
        assert dict(zip(TABLES, heads, strict=True)) == {ORDERS: {number}, LINES: {number - 1}}
