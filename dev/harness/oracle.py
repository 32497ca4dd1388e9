"""The rows of tables at a position, found independently. This module shares no code with the package."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.mysql_server import MysqlServer

Row = tuple[Any, ...]


def replay(source: MysqlServer, replica: MysqlServer, gtid_set: str, first_log: str) -> None:
    """Apply exactly the transactions in ``gtid_set`` of ``source`` to ``replica``, with MySQL's own tools.

    ``first_log`` is the name of the first binary log file. The replica must have the data from before this file.
    """
    server = [f"--host={source.host}", f"--port={source.port}", "--user=root"]
    _apply(replica, gtid_set, ["--read-from-remote-server", *server, "--to-last-log", first_log])


def replay_files(replica: MysqlServer, gtid_set: str, files: Sequence[Path]) -> None:
    """Apply exactly the transactions in ``gtid_set`` to ``replica``, as `replay` does, from ``files`` of a log in their
    order. The server that wrote the files may have purged them meanwhile."""
    _apply(replica, gtid_set, [*map(str, files)])


def _apply(replica: MysqlServer, gtid_set: str, log: Sequence[str]) -> None:
    reader = subprocess.Popen(
        [*replica.tool("mysqlbinlog"), "--no-defaults", f"--include-gtids={gtid_set}", *log],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    client = [
        *replica.tool("mysql"),
        "--no-defaults",
        f"--host={replica.host}",
        f"--port={replica.port}",
        "--user=root",
    ]
    applied = subprocess.run(
        [*client, "--binary-mode", "--max-allowed-packet=1G"],
        stdin=reader.stdout,
        capture_output=True,
        check=False,
    )
    assert reader.stdout is not None
    reader.stdout.close()
    if reader.wait() != 0 or applied.returncode != 0:
        raise HarnessError(f"the replay failed: {applied.stderr.decode(errors='replace')}")


def rows_at(server: MysqlServer, table: str, columns: list[str]) -> Counter[Row]:
    """Return all rows of ``table`` on ``server``, as Python values that compare equal to the values of ``plain``."""
    with server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
            "WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) = %s",
            (table,),
        )
        types = dict(cursor.fetchall())
        expressions = [_exact(name, types[name]) for name in columns]
        cursor.execute(f"SELECT {', '.join(expressions)} FROM {table}")
        return Counter(tuple(row) for row in cursor.fetchall())


def plain(value: Any) -> Any:
    """Convert a value of a published row to the form of ``rows_at``: times as text, because Python cannot represent all
    of them."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, timedelta):
        micros = (value.days * 86400 + value.seconds) * 10**6 + value.microseconds
        sign, micros = ("-", -micros) if micros < 0 else ("", micros)
        seconds, fraction = divmod(micros, 10**6)
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value


def _exact(name: str, data_type: str) -> str:
    # The text protocol rounds a FLOAT to six digits, prints a time with its own decimals, and returns a BIT as bytes.
    quoted = f"`{name}`"
    match data_type:
        case "float" | "double":
            return f"CAST({quoted} AS DOUBLE)"
        case "bit":
            return f"CAST({quoted} AS UNSIGNED)"
        case "time":
            return f"CAST(CAST({quoted} AS TIME(6)) AS CHAR)"
        case "datetime" | "timestamp":
            return f"CAST(CAST({quoted} AS DATETIME(6)) AS CHAR)"
        case "date" | "decimal":
            return f"CAST({quoted} AS CHAR)"
        case _:
            return quoted
