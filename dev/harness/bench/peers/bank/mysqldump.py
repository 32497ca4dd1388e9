"""``mysqldump`` to a file. By default, it locks the tables. With ``single_transaction``, it does not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed, write_rows
from harness.mysql_binaries import find_mysql

_ROW = re.compile(r"\(([^()]*)\)")


def prepare(address: Address) -> Work:
    program = find_mysql().tool("mysqldump")

    def copy(order: Order, folder: Path) -> None:
        way = ["--single-transaction"] if order.way == "single_transaction" else []
        where = [f"--host={address.host}", f"--port={address.port}", f"--user={address.user}"]
        output = ["--set-gtid-purged=OFF", f"--result-file={folder / 'dump.sql'}"]
        subprocess.run([*program, "--no-defaults", *where, *way, *output, SCHEMA], check=True, stdin=subprocess.DEVNULL)

    return timed(copy, _files)


def _files(folder: Path) -> Files:
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}
    with (folder / "dump.sql").open() as dump:
        for line in dump:
            if line.startswith("INSERT INTO "):
                own = rows[line.split("`")[1]]
                own += (
                    tuple(value[1:-1] if value[0] == "'" else int(value) for value in row.split(","))
                    for row in _ROW.findall(line)
                )
    return write_rows(folder, rows)
