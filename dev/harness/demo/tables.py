"""What `dev/demo --format iceberg` reads and shows: tables and cuts, with DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_cdc.lake import read_cut
from harness.demo.stage import SCHEMA
from harness.lake_readers import opened_duckdb

BATCH_ROWS = 10_000
TIME = "seconds"
"""The column of the shop with the type TIME."""
TIMES = {"mysql": "to_microseconds({})", "postgres": "(TIME '00:00' + to_microseconds({}))"}


def rows_at_cut(lake: Path, run_id: str, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of one table at the cut of a run."""
    cut = read_cut(str(lake), run_id=run_id)
    assert cut is not None
    # A time is a count of microseconds in an Iceberg table: an interval in MySQL, a time of the day in PostgreSQL.
    kind = str(cut.source["kind"])
    names = ", ".join(TIMES[kind].format(name) if name == TIME else f'"{name}"' for name in columns)
    with opened_duckdb() as connection:
        found = connection.execute(f"SELECT {names} FROM {cut[f'{SCHEMA}.{table}'].duckdb()}")
        while rows := found.fetchmany(BATCH_ROWS):
            yield from rows


def show_cuts(lake: Path, run_ids: list[str]) -> None:
    """Print a query that joins two tables at one cut, and the same query at the cuts of earlier runs."""
    print("\nTwo tables at one cut, read by DuckDB: the money in the accounts, and what the ledger explains of it")
    with opened_duckdb() as connection:
        for run_id in run_ids:
            cut = read_cut(str(lake), run_id=run_id)
            assert cut is not None
            accounts, ledger = (cut[f"{SCHEMA}.{name}"] for name in ("accounts", "ledger"))
            found = connection.execute(
                f"SELECT count(DISTINCT a.id), count(*) FROM {accounts.duckdb()} a "
                f"JOIN {ledger.duckdb()} l ON l.account_id = a.id"
            ).fetchone()
            assert found is not None
            print(f"  cut {cut.number} (run {run_id}): {found[0]:,} accounts with {found[1]:,} entries of the ledger")
            print(f"    exact at {cut.position}")
    print("\nRead it with")
    print("  from airflow_provider_cdc.lake import read_cut")
    print(f"  cut = read_cut({str(lake)!r})")
    print(f"  PyArrow  cut['{SCHEMA}.accounts'].to_arrow()")
    print(f"  Polars   cut['{SCHEMA}.accounts'].to_polars()")
    print(f"  DuckDB   f\"SELECT … FROM {{cut['{SCHEMA}.accounts'].duckdb()}}\"")
