"""What `dev/demo` shows of `verify`: a copy without a fault, and a planted fault that is found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.demo.stage import KEYS, SCHEMA
from harness.errors import HarnessError

FOUND = 3
"""The exit status of the command if a copy differs."""


@contextmanager
def exchanged_balances(lake: Path) -> Iterator[tuple[int, int]]:
    """Exchange the balances of two accounts in a file of the latest copy: neither the number of rows nor the sum of all
    balances changes. Yield the keys of both accounts, and undo it at the end."""
    data = (path for path in sorted(lake.rglob("*.parquet")) if "accounts" in str(path))
    file = max(data, key=lambda path: (pq.read_metadata(path).num_rows > 1, path.stat().st_mtime))
    content, rows = file.read_bytes(), pq.read_table(file)
    balances = rows["balance"].to_pylist()
    other = next(at for at, balance in enumerate(balances) if balance != balances[0])
    balances[0], balances[other] = balances[other], balances[0]
    at = rows.column_names.index("balance")
    field = rows.schema.field(at)
    pq.write_table(rows.set_column(at, field, pa.array(balances, field.type)), file)
    try:
        yield rows["id"][0].as_py(), rows["id"][other].as_py()
    finally:
        file.write_bytes(content)


def verify(lake: Path, format: str, environment: Mapping[str, str], log: Path) -> tuple[int, Sequence[Any]]:
    """Verify the latest copies of the MySQL shop with the command. Return its exit status and the
    results of the tables.

    :raises HarnessError: the command failed.
    """
    result = lake.parent / "verified.json"
    tables = [f"{SCHEMA}.{table}" for table in KEYS]
    command = [sys.executable, "-m", "airflow_provider_cdc.verify", "source", "--all", *tables]
    command += ["--target", str(lake), "--format", format, "--source-conn-id", "cdc_mysql", "--json", str(result)]
    with log.open("a") as output:
        done = subprocess.run(command, env=dict(environment), stdout=output, stderr=output, check=False)
    if done.returncode not in (0, FOUND):
        raise HarnessError(f"verify ended with the exit status {done.returncode}; see {log}")
    found = json.loads(result.read_text())["tables"]
    result.unlink()
    return done.returncode, found


def show_fault(found: Sequence[Any], keys: tuple[int, int]) -> None:
    """Print what a verification says of the planted fault."""
    for table in found:
        if table["outcome"] == "different":
            print(f"      {table['table']} (accounts {keys[0]} and {keys[1]} were exchanged): {table['why']}")
            for one in table["differences"]:
                key = ", ".join(f"{name} = {value}" for name, value in one["key"].items())
                rows = one["left"][0], one["right"][0]
                sides = (f"{name}: {rows[0][name]} (source), {rows[1][name]} (copy)" for name in one["columns"])
                print(f"        {key}: {'; '.join(sides)}")
            for text in table["damaged"]:
                print(f"        {text}")
