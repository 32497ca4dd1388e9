"""ingestr, one table after the other, into DuckDB. It has an environment of its own. The later nights merge the rows
with a new value of the cursor column."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, from_duckdb, timed
from harness.bench.peers.bank.own import INGESTR, own_environment


def prepare(address: Address) -> Work:
    python = own_environment(INGESTR)
    scheme = "mysql+pymysql" if address.kind == "mysql" else "postgresql"
    url = f"{scheme}://{address.user}@{address.host}:{address.port}/{address.database or SCHEMA}"

    def copy(order: Order, folder: Path) -> None:
        # Without a network, reports of dlt, which ingestr uses, delay the end of each process by half a minute.
        telemetry = {"DISABLE_TELEMETRY": "true", "RUNTIME__DLTHUB_TELEMETRY": "false"}
        environment = {**os.environ, "HOME": str(folder), **telemetry}
        for table in TABLES:
            # The script `ingestr` names the folder in which it was installed.
            command = [
                str(python),
                "-c",
                "from ingestr.main import main; main()",
                "ingest",
                "--yes",
                "--source-uri",
                url,
                "--source-table",
                f"{SCHEMA}.{table}",
            ]
            command += ["--dest-uri", f"duckdb:///{folder}/lake.duckdb", "--dest-table", f"{SCHEMA}.{table}"]
            command += ["--incremental-strategy", "merge", "--incremental-key", "updated", "--primary-key", "id"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)

    def files(folder: Path) -> Files:
        return from_duckdb(folder / "lake.duckdb")

    return timed(copy, files)
