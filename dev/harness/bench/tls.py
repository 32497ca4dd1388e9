"""`bench tls`: one session reads a PostgreSQL table: plain, over verified TLS, and over TLS that only libpq reads.

The kinds are read in turns. Rows become Arrow batches, which are discarded. The fastest of several rounds counts."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.decode.rows import open_rows
from harness.bench.contender import Address
from harness.bench.postgres_tables import ensure_table
from harness.bench.recorded import recorded
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import POSTGRES_OPTIONS
from harness.postgres_server import PostgresServer
from harness.postgres_tls import switch_tls_on

WARM_UP_ROWS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="number of reads of each kind; the fastest counts")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report = Report("tls", arguments.rows)
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tls-", dir=directory) as work,
        PostgresServer.start(Path(work) / "postgres", options=POSTGRES_OPTIONS) as server,
    ):
        authority = Path(work) / "ca.pem"
        switch_tls_on(server, authority)
        names = [ensure_table(server, "mixed", rows) for rows in (WARM_UP_ROWS, arguments.rows)]
        settings = Address.of(server).settings
        ways = {
            "plain": {"mode": "disabled"},
            "verified": {"mode": "verify_ca", "ca": str(authority)},
            "libpq": {"mode": "required"},
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for round_number in range(arguments.rounds + 1):
            name = names[bool(round_number)]
            with recorded(open_source(settings), name) as point:
                for way, tls in ways.items():
                    took = _read(replace(settings, tls=tls), point.tables[0], name)
                    if round_number:
                        seconds[way].append(took)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.results += [Result(way, arguments.rows, min(took), peak) for way, took in seconds.items()]
    verified = min(seconds["verified"])
    report.ratios = {f"vs_{way}": min(seconds[way]) / verified for way in ("plain", "libpq")}
    print_table(
        ["session", "s", "rows/s"],
        [[one.name, f"{one.seconds:.2f}", f"{one.rows_per_s:,.0f}"] for one in report.results],
    )
    print_ratios(report.ratios)
    return report


def _read(settings: ConnectionSettings, table: Table, name: str) -> float:
    started = time.perf_counter()
    with open_rows(settings, table) as rows:
        for _ in rows.read(name):
            pass
    return time.perf_counter() - started
