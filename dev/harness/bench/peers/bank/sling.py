"""Sling: a replication of all tables to Parquet files. It has an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import parquet_files, timed
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
            "target": "LOCAL",
            "defaults": {"mode": "full-refresh", "object": f"file://{folder}/{{stream_table}}.parquet"},
            "streams": {f"{SCHEMA}.{table}": None for table in TABLES},
        }
        (folder / "replication.json").write_text(json.dumps(replication))
        environment = {**os.environ, "BENCH": url, "HOME": str(folder), "SLING_DISABLE_TELEMETRY": "true"}
        command = [str(program), "run", "-r", str(folder / "replication.json")]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)

    return timed(copy, parquet_files)
