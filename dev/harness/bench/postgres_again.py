"""The part of `bench postgres` without REPLICA IDENTITY FULL: touched rows are read again in an exported snapshot.

The snapshot step is measured in the same way as with FULL, with no touched rows. The time for which the exported
snapshot is open is measured with keys that were touched since the run began. If there are many of them, most are read
again before it is opened. The same statements are also run with and without FULL, to compare the log that they write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.postgres_tables import SHAPES
from harness.bench.report import Report, Result, print_table
from harness.bench.snapshot import Measured, measure
from harness.bench.tables import SCHEMA
from harness.messages import say
from harness.postgres_server import PostgresServer

TOUCHED = (1_000, 100_000)
_BODY_BYTES = 40_000
_BODIES = 500


@dataclass(frozen=True)
class Again:
    """The measurements: the snapshot; the contender's results by the number of touched keys; and the bytes of log that
    changes wrote with and without FULL, by the kind of change."""

    snapshot: Measured
    views: Mapping[int, Mapping[str, Any]]
    log: Mapping[str, tuple[int, int]]


def measured(server: PostgresServer, tables: Mapping[str, Order], rounds: int, work: Path, logs: Path) -> Again:
    """Measure the tables ``warm``, ``small`` and ``large``. At the end, they have FULL again."""
    orders = {size: replace(order, consistency="again") for size, order in tables.items()}
    address, large = Address.of(server), orders["large"]
    with _without_full(server, [order.table for order in orders.values()]):
        (snapshot,) = measure(address, ["ours"], orders, rounds, work, logs)
        views = {}
        with Contender("ours", address, logs / "ours.log") as ours:
            ours.ready()
            for number, touched in enumerate([10, *(min(touched, large.rows) for touched in TOUCHED)]):
                say(f"bench: {touched:,} keys touched before the reads")
                statement = scattered(large.table, large.rows, touched)
                target = str(work / f"touched-{number}")
                views[touched] = ours.run(replace(large, target=target, meanwhile=(statement,)))
    views.pop(10)
    return Again(snapshot, views, _log_written(server, large))


def fill(report: Report, again: Again, rewinding: Measured) -> None:
    """Add results and ratios to the report, and print a table of them."""
    large = again.snapshot.large
    report.results.append(Result("ours_again", large["rows"], large["seconds"], again.snapshot.peak_rss_mb))
    rates = [line.rows_per_s or line.rows / line.seconds for line in (again.snapshot.line(), rewinding.line())]
    report.ratios["vs_rewinding"] = rates[0] / rates[1]
    for touched, found in again.views.items():
        report.results.append(Result(f"view_{touched}_keys", touched, found["view_seconds"], found["peak_rss_mb"]))
    for what, (full, without) in again.log.items():
        report.ratios[f"vs_full_log_{what}"] = full / without
    print(f"\nread again, nothing touched: {large['seconds']:.2f} s, {rates[0]:,.0f} rows/s; ", end="")
    print(f"compared with the rate of rewinding: {rates[0] / rates[1]:.2f}\n")
    print_table(
        ["keys touched", "looked up in the view", "view open, s", "snapshot s"],
        [
            [f"{touched:,}", f"{found['keys_in_view']:,}", f"{found['view_seconds']:.2f}", f"{found['seconds']:.2f}"]
            for touched, found in again.views.items()
        ],
    )
    print()
    print_table(
        ["bytes of log for each change", "FULL", "default", "FULL ÷ default"],
        [[what, f"{full:,}", f"{without:,}", f"{full / without:.1f}"] for what, (full, without) in again.log.items()],
    )


def scattered(table: str, rows: int, touched: int) -> str:
    """Return a statement that updates ``touched`` of the keys 1 to ``rows``, spread evenly."""
    step = max(1, rows // touched)
    change = SHAPES[table.split(".")[1].split("_")[0]].change
    return f"UPDATE {table} SET {change} WHERE id % {step} = 0 AND id <= {step * touched}"


@contextmanager
def _without_full(server: PostgresServer, tables: list[str]) -> Iterator[None]:
    for table in tables:
        server.query(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    try:
        yield
    finally:
        for table in tables:
            server.query(f"ALTER TABLE {table} REPLICA IDENTITY FULL")


def _log_written(server: PostgresServer, large: Order) -> dict[str, tuple[int, int]]:
    """Measure the bytes of log per changed row: for one column of the table, and for an integer beside a large text."""
    body = f"{SCHEMA}.bodies"
    server.query(f"DROP TABLE IF EXISTS {body}")
    server.query(f"CREATE TABLE {body} (id int PRIMARY KEY, n int, body text)")
    # Store the text uncompressed and out of line, as large values are.
    server.query(f"ALTER TABLE {body} ALTER body SET STORAGE EXTERNAL")
    server.query(f"INSERT INTO {body} SELECT i, 0, repeat('x', {_BODY_BYTES}) FROM generate_series(1, {_BODIES}) i")
    changes = {
        "one_column": (large.table, scattered(large.table, large.rows, min(10_000, large.rows)), 10_000),
        "beside_40_kb": (body, f"UPDATE {body} SET n = n + 1", _BODIES),
    }
    found = {}
    for what, (table, statement, changed) in changes.items():
        written = []
        for identity in ("FULL", "DEFAULT"):
            server.query(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
            # After a checkpoint, the first change of a page logs the whole page, so change all pages once before.
            server.query("CHECKPOINT")
            server.query(statement)
            written.append(_bytes_written(server, statement) // min(changed, large.rows))
        server.query(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        found[what] = (written[0], written[1])
    server.query(f"DROP TABLE {body}")
    return found


def _bytes_written(server: PostgresServer, statement: str) -> int:
    ((before,),) = server.query("SELECT pg_current_wal_insert_lsn()::text")
    server.query(statement)
    ((written,),) = server.query("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::bigint", (before,))
    return int(written)
