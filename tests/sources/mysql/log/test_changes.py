"""Each single change of a segment, however little of the segment is in memory at a time."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, TrackedTable
from airflow_provider_cdc.sources.log import changes as held
from airflow_provider_cdc.sources.mysql.log import dump, segments
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.sources.mysql.log.reading import executed, log_end, settings


def write(server: MysqlServer, schema: str, seed: int) -> None:
    """Transactions of two tables, some of them prepared, some of them large, some compressed."""
    chance = random.Random(seed)
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET xa_detach_on_prepare = ON")
        prepared: list[str] = []
        for number in range(60):
            cursor.execute("SET binlog_transaction_compression = %s", (chance.random() < 0.2,))
            xid = f"x{number}" if chance.random() < 0.3 else ""
            cursor.execute(f"XA START '{xid}'" if xid else "BEGIN")
            for table in chance.choices(["a", "b"], k=chance.choice([1, 3])):
                rows = [(number, "v" * chance.choice([0, 9, 2000])) for _ in range(chance.choice([1, 5, 40]))]
                cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", rows)
            if xid:
                cursor.execute(f"XA END '{xid}'")
                cursor.execute(f"XA PREPARE '{xid}'")
                prepared.append(xid)
            else:
                cursor.execute("COMMIT")
            if prepared and chance.random() < 0.3:
                done = prepared.pop(chance.randrange(len(prepared)))
                cursor.execute(f"XA {chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} '{done}'")
        cursor.execute("FLUSH BINARY LOGS")
        for xid in prepared:
            cursor.execute(f"XA COMMIT '{xid}'")


@pytest.mark.parametrize("seed", range(2))
def test_changes_are_the_same_however_they_are_handed_out(
    mysql: MysqlServer, schema: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        for name in ("a", "b"):
            cursor.execute(f"CREATE TABLE {name} (id INT, v TEXT)")
    mysql.query("FLUSH BINARY LOGS")
    before = executed(mysql)
    write(mysql, schema, seed)
    after, end = executed(mysql), log_end(mysql)
    with session(settings(mysql)) as connection:
        tables = read_tables(connection, [TableName(schema, name) for name in ("a", "b")])
    tracked = [TrackedTable(4 - index, table, after, forward=True, changes=True) for index, table in enumerate(tables)]

    def read() -> tuple[list[pa.Table], int]:
        """The changes of each segment, sorted as they need not be handed out: what is pending apart, table by table."""
        found, parts = [], 0
        for segment in segments.log_segments(settings(mysql), before, end):
            told: list[pa.RecordBatch] = []
            with segments.open_segment(settings(mysql), segment, before, tracked, told.append) as reader:
                for _ in reader:
                    pass
            parts += len(told)
            rows = pa.Table.from_batches(told, CHANGE_SCHEMA).to_pylist()
            found.append(sorted(rows, key=lambda row: (row["pending"] or "", row["table"])))
        return found, parts

    whole, batches = read()
    assert sum(map(len, whole)) > 300
    assert any(row["pending"] for row in whole[0])
    assert not any(row["pending"] for row in whole[-1])
    for rows in whole:
        assert all((row["position"] is None) == (row["pending"] is not None) for row in rows)
        assert all(row["before"] is None and row["after"] is not None for row in rows)
    monkeypatch.setattr(segments, "LOG_BYTES", 0)
    monkeypatch.setattr(held, "BATCH_ROWS", 7)
    monkeypatch.setattr(held, "BATCH_BYTES", 3000)
    # So much is received at a time.
    monkeypatch.setattr(dump, "RAW_BYTES", 1 << 12)
    little, more = read()
    assert little == whole
    assert more > 5 * batches
