"""Sling: a replication of all tables to SQLite, because it downloads a program to write Parquet. It has an environment
of its own. The later nights merge the rows with a new value of the cursor column."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed, write_rows
from harness.bench.peers.bank.own import SLING, own_environment


def prepare(address: Address) -> Work:
    python = own_environment(SLING)
    (program,) = python.parent.parent.glob("lib/*/site-packages/sling_linux_amd64/bin/sling-linux-amd64")
    scheme = "mysql" if address.kind == "mysql" else "postgres"
    database = address.database or SCHEMA
    tls = "" if address.kind == "mysql" else "?sslmode=disable"
    url = f"{scheme}://{address.user}@{address.host}:{address.port}/{database}{tls}"

    def copy(order: Order, folder: Path) -> None:
        replication = {
            "source": "BENCH",
            "target": "LAKE",
            "defaults": {
                "mode": "incremental",
                "primary_key": ["id"],
                "update_key": "updated",
                "object": "main.{stream_table}",
            },
            "streams": {f"{SCHEMA}.{table}": None for table in TABLES},
        }
        (folder / "replication.json").write_text(json.dumps(replication))
        environment = {**os.environ, "BENCH": url, "LAKE": f"sqlite://{folder}/lake.db", "HOME": str(folder)}
        command = [str(program), "run", "-r", str(folder / "replication.json")]
        environment["SLING_DISABLE_TELEMETRY"] = "true"
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)

    return timed(copy, _files)


def _files(folder: Path) -> Files:
    with closing(sqlite3.connect(folder / "lake.db")) as connection:
        rows = {
            table: connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
            for table, columns in TABLES.items()
        }
    return write_rows(folder, rows)
