"""``pg_dump`` to a file, in its plain format."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Order, Work
from harness.postgres_binaries import find_postgres


def prepare(address: Address) -> Work:
    program = find_postgres().tool("pg_dump")

    def copy(order: Order) -> dict[str, Any]:
        folder = Path(order.target)
        folder.mkdir()
        command = [program, f"--dbname={address.url}", f"--table={order.table}", f"--file={folder / 'dump.sql'}"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return {"rows": order.rows}

    return copy
