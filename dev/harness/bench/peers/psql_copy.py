"""The limit: psql copies in binary and discards the data, with the connections and ranges of blocks of this package."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from typing import Any

from harness.bench.contender import Address, Order, Work
from harness.bench.spark import CORES
from harness.postgres_binaries import find_postgres


def prepare(address: Address) -> Work:
    psql = find_postgres().tool("psql")

    def copy(order: Order) -> dict[str, Any]:
        with address.cursor() as cursor:
            cursor.execute(f"SELECT pg_relation_size('{order.table}') / current_setting('block_size')::int")
            blocks = cursor.fetchone()[0]
        edges = [blocks * part // CORES for part in range(CORES)] + [4_000_000_000]
        selects = [
            f"SELECT * FROM {order.table} WHERE ctid >= '({low},0)' AND ctid < '({high},0)'"
            for low, high in pairwise(edges)
        ]
        running = [
            subprocess.Popen(
                [psql, "-X", f"--dbname={address.url}", f"--command=COPY ({select}) TO STDOUT (FORMAT binary)"],
                stdout=subprocess.DEVNULL,
            )
            for select in selects
        ]
        if any(one.wait() for one in running):
            raise RuntimeError("psql failed")
        return {"rows": order.rows}

    return copy
