"""The rows of a run, without Spark: the rows that were read, rewound by the log to the initial position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.contract.begun import Begun, row_keys
from tests.contract.databases import Database


def copied(db: Database, *tables: str, write: Callable[[], None], chunk_rows: int = 20) -> dict[str, Counter[bytes]]:
    """The rows of each table at a position, as ``core.row_bytes`` has them.

    Preflight, the position, then ``write``, the chunks and their reads, and the log.
    """
    run = Begun(db, *tables)
    try:
        write()
        found = run.read_all(chunk_rows)
        window = run.window()
    finally:
        run.release()
    rows: dict[str, Counter[bytes]] = {}
    for name, table in run.tables.items():
        read = row_keys(found[name], found[name].schema.names)
        if table.keyless:
            rows[name] = Counter(read)
            rows[name].subtract(window.counts[name])
            rows[name] = Counter({row: count for row, count in rows[name].items() if count})
            continue
        before = window.before[name]
        kept = [row for row, key in zip(read, row_keys(found[name], table.key), strict=True) if key not in before]
        rows[name] = Counter([*kept, *(row for row in before.values() if row is not None)])
    return rows
