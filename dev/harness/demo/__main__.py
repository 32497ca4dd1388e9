"""`dev/demo`: copies a busy shop with Airflow and Spark, then proves without this package that every row is right."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from airflow_provider_cdc.core.options.lake import FORMATS
from airflow_provider_cdc.core.run.ledger import FIRST
from airflow_provider_cdc.core.run.results import ConsolidateResult, SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from harness.airflow_home import AirflowHome
from harness.cache import cache_directory
from harness.demo.mysql_stage import MysqlStage
from harness.demo.postgres_stage import PostgresStage
from harness.demo.remote import show as show_remote
from harness.demo.shards import show as show_shards
from harness.demo.stage import KEYS, SCHEMA, Row, Stage, StageFactory
from harness.demo.tables import rows_at_cut, show_cuts
from harness.demo.verifying import FOUND, exchanged_balances, show_fault, verify
from harness.errors import HarnessError

STAGES: Mapping[str, StageFactory] = {"mysql": MysqlStage.start, "postgres": PostgresStage.start}
DEMOS: Mapping[str, str] = {
    "mysql": "the main job and its proof, on MySQL (the default)",
    "postgres": "the main job and its proof, on PostgreSQL",
    "nights": "a copy that is rolled forward, a copy as of a time in the past, and rows that are read again",
    "verify": "the command that verifies copies: without a fault, and with a planted one",
    "shards": "one table from two MySQL servers, with a key that is on both",
    "remote": "a Spark driver that a service starts, and a worker of Airflow that is killed",
}
ALL = "all"
SHARD_ROWS = 5_000
"""The greatest number of rows of each shard in the demo of merged tables."""
PAST_SECONDS = 3
"""Seconds that the writers run before the time of the copy of the past, and again before the first DAG begins."""


@dataclass
class Copy:
    """A further run of the DAG with its own options, and the number of differences that the proof found."""

    title: str
    lake: Path
    options: dict[str, Any]
    differences: int = field(default=-1)


@dataclass
class TableResult:
    """The result of the proof for one table."""

    name: str
    rows: int
    chunks: int
    rewound: int
    wrong_in_plain: int
    differences: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/demo", description=__doc__)
    demos = [*DEMOS, ALL]
    parser.add_argument("demos", nargs="*", metavar="DEMO", help=f"{', '.join(demos)} (default: mysql)")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of the shop, in all tables together")
    parser.add_argument("--writes", type=float, default=400, help="the writers' target rate, in transactions/s")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="the format of the copies")
    arguments = parser.parse_args()
    if unknown := set(arguments.demos) - set(demos):
        parser.error(f"no such demo: {', '.join(sorted(unknown))} (there are: {', '.join(demos)})")
    chosen = list(DEMOS) if ALL in arguments.demos else arguments.demos or ["mysql"]
    folder = cache_directory() / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failed = False
    try:
        for demo in chosen:
            if demo == "shards":
                failed |= show_shards(folder, _step, min(arguments.rows, SHARD_ROWS))
                continue
            if demo == "remote":
                failed |= show_remote(folder, _step, arguments.rows, arguments.writes)
                continue
            for kind in ("mysql", "postgres") if demo == "nights" else ("mysql",) if demo == "verify" else (demo,):
                with STAGES[kind](folder / f"{demo}-{kind}-server") as stage:
                    failed |= _demo(demo, folder, stage, arguments.rows, arguments.writes, arguments.format)
    except HarnessError as error:
        sys.exit(f"demo: {error}")
    finally:
        for work in folder.glob("*-*"):
            shutil.rmtree(work, ignore_errors=True)
    others = {name: what for name, what in DEMOS.items() if name not in chosen}
    if others:
        print("Try next:")
        for name, what in others.items():
            print(f"  dev/demo {name:<10}{what}")
    print(f"Undo: rm -r {folder}")
    sys.exit(failed)


def _demo(demo: str, folder: Path, stage: Stage, rows: int, writes: float, format: str) -> bool:
    """Run a demo on one database. Return whether any row differs."""
    lake, log, dag = folder / f"{demo}_{stage.kind}_lake", folder / f"{demo}_{stage.kind}.log", f"{stage.kind}_snapshot"
    print(f"demo: {stage.title}")
    with _step(f"create a shop of about {rows:,} rows"):
        stage.fill(rows)
    with _step("copy the shop for the proof, before the writers start"):
        stage.copy_base()
    connection = f"cdc_{stage.kind}"
    airflow = AirflowHome(folder / f"{demo}-{stage.kind}-airflow", {connection: stage.connection()})
    with _step("prepare a private Airflow"):
        airflow.prepare()
    conf = {
        "source_conn_id": connection,
        "tables": [f"{SCHEMA}.{table}" for table in KEYS],
        "spark_conn_id": "spark_default",
        "chunk_rows": 50_000,
        "format": format,
    }

    def run_dag(target: Path, options: dict[str, Any]) -> Run:
        ordered = json.dumps({**conf, **options, "target": target.as_uri()})
        before = _runs(target)
        airflow.run("dags", "test", dag, "--conf", ordered, log=log)
        (folder_of_run,) = _runs(target) - before
        return Run.load(Storage(target.as_uri()).folder("_runs", folder_of_run))

    plain, writers = stage.plain_read(pause=0.4), stage.writers(writes)
    made: list[tuple[Copy, Run]] = []
    failed = False
    with writers:
        time.sleep(PAST_SECONDS)
        past = datetime.now(UTC).isoformat()
        time.sleep(PAST_SECONDS)
        with _step(f"run the DAG {dag} through Airflow, Spark local[2], while 4 writers write"), plain:
            first = run_dag(lake, {})
        if demo == "nights":
            for copy in _more_copies(stage.kind, lake, past):
                with _step(f"run it again, {copy.title}"):
                    made.append((copy, run_dag(copy.lake, copy.options)))
        if demo == "verify":
            failed = _verify(lake, format, airflow, log)
    print(f"      the writers committed {writers.committed:,} transactions meanwhile")
    # The proof can only move forward, so earlier positions come first.
    for copy, run in (one for one in made if one[0].options.get("as_of")):
        _compare_copy(copy, run, stage)
    with _step("rebuild the shop at the initial position, without this package"):
        rebuilt = stage.rebuild(first.position_text)
    print(f"      {rebuilt}; {stage.proof}")
    with _step("compare every row"):
        results = [_compare(table, first, stage, plain.rows[table]) for table in KEYS]
        money, plain_money = _money(stage.truth("accounts")), _money(plain.rows["accounts"])
    _report(results, first, money, plain_money)
    for copy, run in (one for one in made if not one[0].options.get("as_of")):
        _compare_copy(copy, run, stage)
    for copy, run in made:
        _report_copy(copy, run, first)
    if format == "iceberg":
        show_cuts(lake, [first.run_id, *(run.run_id for copy, run in made if copy.lake == lake)])
    else:
        _show_reading(lake)
    print(f"\nThe Airflow log: {log}", end="\n\n")
    return failed or any(result.differences for result in results) or any(copy.differences for copy, _ in made)


def _more_copies(kind: str, lake: Path, past: str) -> list[Copy]:
    """Return the further runs of the DAG on a kind of database, in their order."""
    if kind == "mysql":
        return [
            Copy("rolling the first copy forward by the changes in the log", lake, {"refresh": "changes"}),
            Copy(f"as of {past}, before any DAG began", lake.with_name(f"{lake.name}_of_the_past"), {"as_of": past}),
        ]
    again = {"consistency": "again"}
    title = "reading touched rows again, as without REPLICA IDENTITY FULL"
    return [Copy(title, lake.with_name(f"{lake.name}_read_again"), again)]


def _verify(lake: Path, format: str, airflow: AirflowHome, log: Path) -> bool:
    """Verify the latest copies while the writers write, without a fault and with one. Return whether that failed."""
    with _step("verify the copies, while the writers write"):
        status, found = verify(lake, format, airflow.environment, log)
    right = status == 0 and all(table["outcome"] == "same" for table in found)
    with _step("plant a fault: exchange two balances, and verify again"), exchanged_balances(lake) as keys:
        status, found = verify(lake, format, airflow.environment, log)
    show_fault(found, keys)
    return not right or status != FOUND


def _runs(lake: Path) -> set[str]:
    return {path.parent.parent.name for path in lake.glob(f"_runs/*/{FIRST}")}


def _compare_copy(copy: Copy, run: Run, stage: Stage) -> None:
    with _step(f"rebuild the shop at {run.position}, and compare every row"):
        stage.rebuild(run.position_text)
        copy.differences = sum(
            _unlike(_copied(run, table, stage), stage.truth(table), width) for table, width in KEYS.items()
        )


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"demo: {what} …", end="", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print(" failed")
        raise
    print(f" {time.monotonic() - started:.1f} s", flush=True)


def _compare(table: str, run: Run, stage: Stage, plainly_read: Counter[Row]) -> TableResult:
    name, width = f"{SCHEMA}.{table}", KEYS[table]
    truth, copied = stage.truth(table), _copied(run, table, stage)
    return TableResult(
        name,
        copied.total(),
        run.result_of(SnapshotResult).tables[name].chunks,
        run.result_of(ConsolidateResult).rewound[name],
        _unlike(plainly_read, truth, width),
        _unlike(copied, truth, width),
    )


def _money(accounts: Counter[Row]) -> Decimal:
    return sum((row[2] * count for row, count in accounts.items()), Decimal(0))


def _copied(run: Run, table: str, stage: Stage) -> Counter[Row]:
    return Counter(_published(run, table, stage))


def _published(run: Run, table: str, stage: Stage) -> Iterator[Row]:
    columns = stage.columns[table]
    if run.manifest.lake_format == "iceberg":
        for row in rows_at_cut(_path(run.manifest.lake), run.run_id, table, columns):
            yield stage.comparable_row(row, columns)
        return
    folder = _path(run.result_of(ConsolidateResult).published[f"{SCHEMA}.{table}"])
    for file in sorted(folder.glob("part-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=columns):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield stage.comparable_row(row, columns)


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _latest(lake: Path, name: str) -> Path:
    latest = json.loads((lake / name / "_latest.json").read_text())
    return _path(latest["path"])


def _unlike(rows: Counter[Row], truth: Counter[Row], width: int) -> int:
    """Return the number of rows that are missing, extra or different."""
    difference = (rows - truth) + (truth - rows)
    return len({row[:width] for row in difference}) if width else difference.total()


def _report(results: list[TableResult], run: Run, money: Decimal, plain_money: Decimal) -> None:
    print(f"\nEvery row compared with the proof, at {run.manifest.position_key} = {run.position}\n")
    print(f"{'table':<16}{'rows':>10}{'chunks':>8}{'keys rewound':>14}{'wrong in a plain read':>23}{'differences':>13}")
    for result in results:
        print(
            f"{result.name:<16}{result.rows:>10,}{result.chunks:>8}{result.rewound:>14,}"
            f"{result.wrong_in_plain:>23,}{result.differences:>13,}"
        )
    print(f"{'all':<16}{sum(r.rows for r in results):>10,}{sum(r.chunks for r in results):>8}", end="")
    print(f"{sum(r.rewound for r in results):>14,}{sum(r.wrong_in_plain for r in results):>23,}", end="")
    print(f"{sum(r.differences for r in results):>13,}")
    print(f"\nmoney in all accounts {money:,.2f}; a plain chunked read counts {plain_money:,.2f}: ", end="")
    print(f"{abs(plain_money - money):,.2f} {'too much' if plain_money > money else 'too little'}")
    locked = run.result_of(SnapshotResult).lock_seconds
    print(f"longest lock {locked * 1000:.1f} ms")
    seconds = [f"{name} {found.seconds:.1f} s" for name, found in run.steps.items()]
    print(f"seconds per step: {', '.join(seconds)}")


def _report_copy(copy: Copy, run: Run, first: Run) -> None:
    found, seconds, of_first = run.result_of(ConsolidateResult), _seconds(run), _seconds(first)
    print(f"\nA further run of the DAG, {copy.title}:")
    print(f"  {sum(found.rows.values()):,} rows, exact at {run.position}")
    print(f"  {copy.differences:,} differences from the proof; {sum(found.rewound.values()):,} keys restored")
    print(f"  {format_count(found.files_adopted, 'file')} kept, {found.files_rewritten} rewritten; ", end="")
    print(f"{seconds:.1f} s of work, {seconds / of_first:.0%} of the first run")


def _seconds(run: Run) -> float:
    return sum(found.seconds for found in run.steps.values())


def _show_reading(lake: Path) -> None:
    path = _latest(lake, f"{SCHEMA}.accounts")
    print("\nRead it with")
    print(f"  PyArrow  pyarrow.parquet.read_table('{path}')")
    print(f"  DuckDB   SELECT status, sum(balance) FROM '{path}/*.parquet' GROUP BY status")
    print(f"  Spark    spark.read.parquet('{path}')")


if __name__ == "__main__":
    main()
