"""mysql-replication with the same result: for every key, the row before its first change."""

from __future__ import annotations

from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from harness.bench.contender import Address, Order, Work


def prepare(address: Address) -> Work:
    def net(order: Order) -> dict[str, Any]:
        schema, name = order.table.split(".")
        before: dict[Any, dict[str, Any] | None] = {}
        images = 0
        reader = BinLogStreamReader(
            connection_settings={"host": address.host, "port": address.port, "user": address.user, "passwd": ""},
            server_id=4711,
            log_file=order.files[0],
            log_pos=4,
            resume_stream=True,
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
            only_schemas=[schema],
            only_tables=[name],
        )
        for event in reader:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    images += 2
                    values = row["before_values"]
                    before.setdefault(values["id"], values)
                    before.setdefault(row["after_values"]["id"], None)
                else:
                    images += 1
                    values = row["values"]
                    before.setdefault(values["id"], values if isinstance(event, DeleteRowsEvent) else None)
            # The log continues after the requested files.
            if images >= order.rows:
                break
        reader.close()
        return {"rows": images, "keys": len(before)}

    return net
