"""`bench postgres-as-of`: a copy as of a position before many changes, compared with a current copy and with reading
that log.

The bench measures the cost of the past: a current copy takes little more than its snapshot, but a copy as of the past
also reads and rewinds the log that a standing slot has kept. The bench also measures how long it takes to find the
position of a time.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.postgres_tables import churn, ensure_table
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import logs_directory, postgres_bench_server
from harness.messages import say
from harness.postgres_server import PostgresServer

SLOT = "bench"
BLOCK = 500
TIMES = 5
_READING = ("preflight", "lock_and_record", "snapshot", "extract_delta")
_STEPS = (*_READING, "consolidate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows of the table (--rows are the changes)")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    keys = max(arguments.keys // BLOCK, 1) * BLOCK
    changes = max(arguments.rows // BLOCK, 1) * BLOCK
    report = Report("postgres-as-of", arguments.rows)
    with (
        postgres_bench_server(directory) as server,
        tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work,
    ):
        table, address, logs = ensure_table(server, "mixed", keys), Address.of(server), logs_directory(directory)
        target = str(Path(work) / "target")
        statements = churn(table, keys, changes, BLOCK)
        try:
            with Contender("ours", address, logs / "ours.log") as ours:
                ours.ready()
                # The past of the table begins with the first copy.
                _copy(ours, Order(table, keys, target, standing_slot=SLOT))
                before = server.query("SELECT pg_current_wal_flush_lsn()::text")[0][0]
                begun = datetime.now(UTC)
                say(f"bench: {changes:,} changes, {BLOCK} in a transaction")
                with server.connect() as connection:
                    for statement in statements:
                        connection.execute(statement.encode())
                ended = datetime.now(UTC)
                now = _copy(ours, Order(table, keys, target))
                _copy(ours, Order(table, keys, target, as_of=before, standing_slot=SLOT))
                past = _copy(ours, Order(table, keys, target, as_of=before, standing_slot=SLOT))
            found = _find_times(address, begun, ended)
        finally:
            _drop(server)
        with Contender("ours_slot", address, logs / "ours_slot.log") as log:
            log.ready()
            netted = log.run(Order(table, changes, meanwhile=statements))
    reading = {name: sum(one["steps"][step] for step in _READING) for name, one in (("now", now), ("past", past))}
    report.results += [
        Result("now", keys, reading["now"], now["peak_rss_mb"]),
        Result("past", keys, reading["past"], past["peak_rss_mb"]),
        Result("log_alone", netted["rows"], netted["seconds"], netted["peak_rss_mb"]),
    ]
    report.results.append(Result("find_a_time", changes // BLOCK, statistics.median(found), 0.0))
    report.ratios["vs_snapshot_and_log"] = (reading["now"] + netted["seconds"]) / reading["past"]
    print(f"\nbench: {keys:,} rows, as of a position {changes:,} changes ago\n")
    print_table(
        ["", *_STEPS, "keys rewound"],
        [
            [name, *(f"{one['steps'][step]:.2f} s" for step in _STEPS), f"{one['rewound']:,}"]
            for name, one in (("now", now), ("past", past))
        ],
    )
    print(f"\nthe log alone, netted in one process: {netted['seconds']:.2f} s")
    print(f"a time among {changes // BLOCK:,} commits: {statistics.median(found):.2f} s (median of {len(found)})")
    print_ratios(report.ratios)
    return report


def _copy(ours: Contender, order: Order) -> dict[str, Any]:
    say(f"bench: a copy as of {order.as_of or 'now'}")
    try:
        return ours.run(order)
    finally:
        shutil.rmtree(order.target, ignore_errors=True)


def _find_times(address: Address, begun: datetime, ended: datetime) -> list[float]:
    from airflow_provider_cdc.sources.postgres.server.session import session
    from airflow_provider_cdc.sources.postgres.slots.commits import prefix_at
    from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
    from airflow_provider_cdc.sources.postgres.steps.standing_slot import usable

    with session(address.settings) as connection:
        name = name_of(connection, SLOT)
        record = usable(address.settings, connection, name)
    assert record is not None
    # Keep only the first mark, so that the whole log is searched.
    marks = sorted(record.marks, key=lambda mark: mark.latest)[:1]
    dice, seconds = random.Random(0), []
    for _ in range(TIMES):
        when = begun + dice.random() * (ended - begun)
        started = time.perf_counter()
        prefix_at(address.settings, name, marks, (), round(when.timestamp() * 1_000_000))
        seconds.append(time.perf_counter() - started)
    return seconds


def _drop(server: PostgresServer) -> None:
    """Drop the standing slots and their publications, so that no log is kept for the next bench."""
    for (name,) in server.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc_standing_%'"):
        server.query("SELECT pg_drop_replication_slot(%s)", (name,))
        server.query(f"DROP PUBLICATION IF EXISTS {name}")
