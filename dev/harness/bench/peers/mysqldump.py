"""``mysqldump --single-transaction`` to a file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Order, Work
from harness.mysql_binaries import find_mysql


def prepare(address: Address, locking: str = "--single-transaction") -> Work:
    program = find_mysql().tool("mysqldump")

    def copy(order: Order) -> dict[str, Any]:
        folder = Path(order.target)
        folder.mkdir()
        command = [
            *program,
            "--no-defaults",
            f"--host={address.host}",
            f"--port={address.port}",
            f"--user={address.user}",
            locking,
            "--set-gtid-purged=OFF",
            f"--result-file={folder / 'dump.sql'}",
            *order.table.split("."),
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return {"rows": order.rows}

    return copy
