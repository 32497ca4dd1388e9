"""Each single change of a segment, however little of the segment is in memory at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, TrackedTable
from airflow_provider_cdc.sources.log import changes as held
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log import segments
from tests.sources.postgres.log.reading import FULL, Follow, Run


def test_changes_are_the_same_however_they_are_handed_out(
    follow: Follow, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY, n int, large text)", "CREATE TABLE b (v text)")
    run(*(f"ALTER TABLE {name} {FULL}" for name in "ab"))
    run("INSERT INTO a SELECT i, 0, repeat(md5(i::text), 300) FROM generate_series(1, 30) i")
    reading = follow("a", "b")
    for number in range(40):
        reading.execute(
            f"UPDATE a SET n = {number} WHERE id BETWEEN {number % 20} AND {number % 20 + 9}",
            f"INSERT INTO b VALUES ('{number}'), ('{number}')",
            f"DELETE FROM b WHERE v = '{number - 3}'",
        )
    end = reading.now()
    tracked = [TrackedTable(7 + i, table, end, forward=True, changes=True) for i, table in enumerate(reading.tables)]

    def read() -> tuple[list[dict[str, object]], int]:
        told: list[pa.RecordBatch] = []
        with segments.open_segment(reading.settings, reading.segment(end), reading.initial, tracked, told.append) as it:
            for _ in it:
                pass
        rows = pa.Table.from_batches(told, CHANGE_SCHEMA)
        return sorted(rows.to_pylist(), key=lambda row: row["table"]), len(told)

    whole, batches = read()
    own = [row for row in whole if row["table"] == 7]
    assert [row["table"] for row in whole].count(8) == 80 + 74
    points = [Lsn.parse(str(row["position"])) for row in own]
    assert points == sorted(points)
    assert len({*points}) == 40
    for name in ("before", "after"):
        # What was not changed, and is stored out of line, is not in the log again.
        rows = decode_images(reading.tables[0], pa.array([row[name] for row in own], pa.binary()))
        assert {len(text) for text in rows["large"].to_pylist()} == {9600}
    touched = [number for number in range(40) for id in range(number % 20, number % 20 + 10) if 1 <= id <= 30]
    assert rows["n"].to_pylist() == touched
    monkeypatch.setattr(segments, "LOG_BYTES", 0)
    monkeypatch.setattr(held, "BATCH_ROWS", 7)
    monkeypatch.setattr(held, "BATCH_BYTES", 3000)
    little, more = read()
    assert little == whole
    assert more > 5 * batches
