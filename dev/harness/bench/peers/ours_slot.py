"""This package's reader of a slot: messages to net changes, with the rows before in Arrow, in this process."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres.log.segments import messages
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import reading_session
from harness.bench.contender import Address, Order, Work
from harness.bench.recorded import recorded

ROUNDS = 3


def prepare(address: Address) -> Work:
    source = open_source(address.settings)

    def net(order: Order) -> dict[str, Any]:
        with recorded(source, order.table) as point:
            with address.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                for statement in order.meanwhile:
                    cursor.execute(statement)
            (segment,) = source.segments(Start(point.position, point.identity), AT_START, source.bound_reads().log_end)
            tracked = TrackedTable(0, point.tables[0])
            seconds, drained = [], []
            for _ in range(ROUNDS):
                started = time.perf_counter()
                with source.read_segment(segment, point.position, [tracked]) as reader:
                    for batch in reader:
                        source.decode_images(tracked.table, batch["before"].drop_null())
                seconds.append(time.perf_counter() - started)
                started = time.perf_counter()
                initial, stop = Lsn.expect(point.position), Lsn.expect(source.bound_reads().upper)
                facts = PostgresFacts.of(point.identity)
                slot, publication = facts.slot, facts.publication.name
                with reading_session(address.settings) as reading:
                    deque(messages(reading, slot, publication, initial, stop), maxlen=0)
                drained.append(time.perf_counter() - started)
            # An update has two row images.
            return {"rows": reader.summary.row_images // 2, "seconds": min(seconds), "drained": min(drained)}

    return net
