"""PyMySQL's unbuffered cursor: rows become Python tuples, and nothing is written."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from harness.bench.contender import Address, Order, Work


def prepare(address: Address) -> Work:
    def copy(order: Order) -> dict[str, Any]:
        with (
            pymysql.connect(
                host=address.host, port=address.port, user=address.user, cursorclass=SSCursor
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT * FROM {order.table}")
            return {"rows": sum(1 for _ in cursor)}

    return copy
