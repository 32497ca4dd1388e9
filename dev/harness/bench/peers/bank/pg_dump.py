"""``pg_dump`` to a file, in its plain format: one transaction with one snapshot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed, write_rows
from harness.postgres_binaries import find_postgres


def prepare(address: Address) -> Work:
    program = find_postgres(17).tool("pg_dump")

    def copy(order: Order, folder: Path) -> None:
        command = [program, f"--dbname={address.url}", f"--schema={SCHEMA}", f"--file={folder / 'dump.sql'}"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    return timed(copy, _files)


def _files(folder: Path) -> Files:
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}
    own: list[tuple[object, ...]] | None = None
    with (folder / "dump.sql").open() as dump:
        for line in dump:
            if line.startswith("COPY "):
                own = rows[line.split()[1].split(".")[1]]
            elif line == "\\.\n":
                own = None
            elif own is not None:
                values = line.rstrip("\n").split("\t")
                own.append(tuple(int(value) if value.lstrip("-").isdigit() else value for value in values))
    return write_rows(folder, rows)
