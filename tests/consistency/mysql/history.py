"""Random histories: tables with every kind of key, and writers that make every change that the log can record.

A history is drawn from a seed. The server determines how its writers interleave, so a seed names a family of histories,
not one history. A failure prints the seed all the same, because families differ in what they provoke.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql

from tests.consistency.writing import PAUSE, Write

Cursor = Any

ELSEWHERE = "elsewhere"
"""A schema that no run copies."""

WORDS = [
    "alpha",
    "Beta",
    "GAMMA",
    "delta",
    "Épsilon",
    "zeta",
    "ETA",
    "thêta",
    "iota",
    "kappa",
    "ß",
    "straße",
    "naïve",
]


@dataclass(frozen=True)
class Subject:
    """A table of the history: its columns, how to draw its key, and how to draw its other columns.

    ``more`` is what its definition ends with. Columns that are neither of the key nor drawn are generated.
    """

    name: str
    columns: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    draw_key: Callable[[random.Random], tuple[Any, ...]]
    draw_values: Callable[[random.Random], tuple[Any, ...]]
    more: str = ""

    @property
    def into(self) -> str:
        """What an INSERT of `row` says after INTO."""
        names = (*self.key, *self.values)
        return f"{self.name} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"

    def row(self, chance: random.Random) -> tuple[Any, ...]:
        return self.draw_key(chance) + self.draw_values(chance)


def _word(chance: random.Random) -> str:
    word = chance.choice(WORDS) + str(chance.randrange(60))
    return chance.choice([word, word.swapcase(), word.upper()])


def _minute(chance: random.Random) -> str:
    return f"{chance.randrange(60):02}"


SUBJECTS = (
    Subject(
        "integers",
        "id INT NOT NULL PRIMARY KEY, big BIGINT UNSIGNED NULL, text VARCHAR(60) NULL, "
        "amount DECIMAL(30,6) NOT NULL, at TIMESTAMP(6) NULL",
        ("id",),
        ("big", "text", "amount", "at"),
        lambda chance: (chance.choice([chance.randrange(-300, 700), chance.randrange(10**9, 10**9 + 100)]),),
        lambda chance: (
            chance.choice([None, chance.randrange(2**64)]),
            chance.choice([None, _word(chance), "x" * chance.randrange(60)]),
            str(chance.randrange(-(10**20), 10**20)) + "." + str(chance.randrange(10**6)),
            chance.choice([None, f"2026-03-{chance.randrange(1, 29):02} 12:00:00.{chance.randrange(10**6):06}"]),
        ),
    ),
    Subject(
        "names",
        "name VARCHAR(40) COLLATE utf8mb4_0900_ai_ci NOT NULL PRIMARY KEY, note TEXT CHARACTER SET latin1 NULL, "
        "mood ENUM('calm','glad','über') NULL, ratio DOUBLE NOT NULL",
        ("name",),
        ("note", "mood", "ratio"),
        lambda chance: (_word(chance),),
        lambda chance: (
            chance.choice([None, "déjà " * chance.randrange(20)]),
            chance.choice([None, "calm", "glad", "über"]),
            chance.random() * 10 ** chance.randrange(-10, 10),
        ),
    ),
    Subject(
        "pairs",
        "code CHAR(8) COLLATE utf8mb4_general_ci NOT NULL, number SMALLINT UNSIGNED NOT NULL, day DATE NULL, "
        "span TIME(3) NULL, PRIMARY KEY (code, number)",
        ("code", "number"),
        ("day", "span"),
        lambda chance: (chance.choice(["aa", "AA", "bB", "c", "C", "dddddddd"]), chance.randrange(100)),
        lambda chance: (
            chance.choice([None, f"19{chance.randrange(100):02}-05-17"]),
            chance.choice([None, f"-{chance.randrange(800)}:10:11.125", f"{chance.randrange(800)}:59:59"]),
        ),
    ),
    Subject(
        "blobs",
        "token BINARY(4) NOT NULL PRIMARY KEY, body BLOB NULL, flags BIT(9) NOT NULL, document JSON NULL, "
        "made YEAR NULL",
        ("token",),
        ("body", "flags", "document", "made"),
        # Keys that end in zero bytes: the log drops those.
        lambda chance: (bytes([chance.randrange(4), chance.randrange(100), chance.randrange(2), 0]),),
        lambda chance: (
            chance.choice([None, chance.randbytes(chance.randrange(80))]),
            chance.randrange(512),
            chance.choice([None, '{"b": [1, 2.50, null], "a": "é"}', "[]", f'{{"n": {chance.randrange(10**6)}}}']),
            chance.choice([None, chance.randrange(1901, 2156)]),
        ),
    ),
    Subject(
        "moments",
        "amount DECIMAL(18,6) NOT NULL, at DATETIME(6) NOT NULL, tags SET('a','b','c') NULL, "
        "hidden INT NULL INVISIBLE, doubled BIGINT GENERATED ALWAYS AS (hidden * 2) STORED, PRIMARY KEY (amount, at)",
        ("amount", "at"),
        ("tags", "hidden"),
        lambda chance: (
            chance.choice(["0", "-0.000001", "1.5", "999999999999.999999", str(chance.randrange(30))]),
            chance.choice(["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", f"2026-03-29 02:{_minute(chance)}:00"]),
        ),
        lambda chance: (
            chance.choice([None, "", "a", "a,c"]),
            chance.choice([None, chance.randrange(-(2**31), 2**31)]),
        ),
    ),
    Subject(
        "parted",
        "id BIGINT NOT NULL AUTO_INCREMENT, day DATE NOT NULL, note MEDIUMTEXT NULL, PRIMARY KEY (id, day)",
        ("id", "day"),
        ("note",),
        # Another day, as often as not in another partition.
        lambda chance: (chance.randrange(1, 400), f"2026-0{chance.randrange(1, 10)}-01"),
        lambda chance: (
            chance.choice([None, "short", "".join(chance.choices("abcdé", k=9)) * chance.choice([1, 100, 3000])]),
        ),
        " PARTITION BY RANGE COLUMNS (day) (PARTITION p0 VALUES LESS THAN ('2026-04-01'), "
        "PARTITION p1 VALUES LESS THAN (MAXVALUE))",
    ),
    Subject(
        "keyless",
        "a INT NOT NULL, b VARCHAR(20) NULL, c FLOAT NULL, KEY (a)",
        (),
        ("a", "b", "c"),
        lambda chance: (),
        lambda chance: (
            chance.randrange(40),
            chance.choice([None, "same", "Same", "other"]),
            chance.choice([None, 0.1, 2.5]),
        ),
    ),
)


def create(connection: pymysql.Connection[Any], schema: str, seed: int, rows: int) -> None:
    """Make the tables in ``schema`` (which exists) and about ``rows`` rows in each."""
    chance = random.Random(f"{seed}/rows")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{ELSEWHERE}`")
        cursor.execute(f"USE `{schema}`")
        for subject in SUBJECTS:
            cursor.execute(f"CREATE TABLE {subject.name} ({subject.columns}) CHARACTER SET utf8mb4{subject.more}")
            cursor.executemany(f"INSERT IGNORE INTO {subject.into}", [subject.row(chance) for _ in range(rows)])


def write(connect: Callable[[], pymysql.Connection[Any]], schema: str, pause: float = PAUSE) -> Write:
    """Transactions on a history's tables, for `Writing`, with up to ``pause`` seconds between them."""

    def writing(chance: random.Random, stop: threading.Event) -> None:
        with contextlib.closing(connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{schema}`")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1, time_zone = '+00:00'")
            while not stop.is_set():
                _one(cursor, chance)
                time.sleep(pause * chance.random())

    return writing


def _one(cursor: Cursor, chance: random.Random) -> None:
    if chance.random() < 0.02:
        _elsewhere(cursor, chance)
        return
    cursor.execute("SET SESSION binlog_transaction_compression = %s", (chance.random() < 0.3,))
    tag = f"AUTOMATIC:tag{chance.randrange(3)}" if chance.random() < 0.2 else "AUTOMATIC"
    cursor.execute("SET SESSION gtid_next = %s", (tag,))
    xid = uuid.uuid4().hex if chance.random() < 0.06 else None
    try:
        cursor.execute(f"XA START '{xid}'" if xid else "BEGIN")
        for _ in range(chance.choice([1, 1, 2, 4])):
            _operation(cursor, chance, savepoints=xid is None)
    except pymysql.err.MySQLError as error:
        if error.args[0] not in (1205, 1213, 1062, 1614, 1402):
            raise
        _give_up(cursor, xid)
        return
    if xid:
        _finish_xa(cursor, chance, xid)
    elif chance.random() < 0.1:
        cursor.execute("ROLLBACK")
    else:
        cursor.execute("COMMIT")


def _elsewhere(cursor: Cursor, chance: random.Random) -> None:
    """DDL in the midst of it all, on what is not copied; or on what is, without a trace in any row."""
    cursor.execute("SET SESSION gtid_next = 'AUTOMATIC'")
    other = f"`{ELSEWHERE}`.t{chance.randrange(3)}"
    cursor.execute(
        chance.choice(
            [
                f"CREATE TABLE IF NOT EXISTS {other} (id INT PRIMARY KEY)",
                f"DROP TABLE IF EXISTS {other}",
                f"CREATE TEMPORARY TABLE IF NOT EXISTS {other} (id INT)",
                "ANALYZE TABLE integers",
            ]
        )
    )


def _finish_xa(cursor: Cursor, chance: random.Random, xid: str) -> None:
    cursor.execute(f"XA END '{xid}'")
    how = chance.random()
    if how < 0.3:
        cursor.execute(f"XA COMMIT '{xid}' ONE PHASE")
        return
    cursor.execute(f"XA PREPARE '{xid}'")
    # Time in which other transactions, and perhaps a position, come between its rows and its commit.
    time.sleep(chance.random() * 0.15)
    cursor.execute(f"XA {'ROLLBACK' if how > 0.85 else 'COMMIT'} '{xid}'")


def _give_up(cursor: Cursor, xid: str | None) -> None:
    if xid is None:
        cursor.execute("ROLLBACK")
        return
    with contextlib.suppress(pymysql.err.MySQLError):
        cursor.execute(f"XA END '{xid}'")
    with contextlib.suppress(pymysql.err.MySQLError):
        cursor.execute(f"XA ROLLBACK '{xid}'")


def _operation(cursor: Cursor, chance: random.Random, *, savepoints: bool) -> None:
    subject = chance.choice(SUBJECTS)
    if not subject.key:
        _keyless_operation(cursor, chance, subject)
        return
    where = " AND ".join(f"{name} = %s" for name in subject.key)
    new_values = ", ".join(f"{name} = %s" for name in subject.values)
    new_key = ", ".join(f"{name} = %s" for name in subject.key)
    key = subject.draw_key(chance)
    kind = chance.randrange(11)
    if kind == 0:
        cursor.execute(f"INSERT IGNORE INTO {subject.into}", subject.row(chance))
    elif kind == 1:
        cursor.execute(f"UPDATE {subject.name} SET {new_values} WHERE {where}", subject.draw_values(chance) + key)
    elif kind == 2:
        cursor.execute(f"UPDATE IGNORE {subject.name} SET {new_key} WHERE {where}", subject.draw_key(chance) + key)
    elif kind == 3:
        cursor.execute(f"DELETE FROM {subject.name} WHERE {where}", key)
    elif kind == 4:
        cursor.execute(f"DELETE FROM {subject.name} WHERE {where}", key)
        cursor.execute(f"INSERT IGNORE INTO {subject.into}", key + subject.draw_values(chance))
    elif kind == 5:
        cursor.execute(f"REPLACE INTO {subject.into}", subject.row(chance))
    elif kind == 6:
        cursor.execute(
            f"INSERT INTO {subject.into} ON DUPLICATE KEY UPDATE {new_values}",
            subject.row(chance) + subject.draw_values(chance),
        )
    elif kind == 7 and isinstance(key[0], str):
        # Only the case changes: the same key to the collation, another one to the bytes.
        other = tuple(part.swapcase() if isinstance(part, str) else part for part in key)
        cursor.execute(f"UPDATE IGNORE {subject.name} SET {new_key} WHERE {where}", other + key)
    elif kind == 9:
        # Many rows at once, and one column of each: an event of the log holds several rows.
        value = chance.randrange(len(subject.values))
        change = f"{subject.values[value]} = %s"
        drawn = subject.draw_values(chance)[value]
        cursor.execute(f"UPDATE {subject.name} SET {change} WHERE {subject.key[0]} > %s LIMIT 30", (drawn, key[0]))
    elif kind == 10:
        cursor.executemany(f"INSERT IGNORE INTO {subject.into}", [subject.row(chance) for _ in range(5)])
    elif savepoints:
        cursor.execute("SAVEPOINT here")
        cursor.execute(f"UPDATE {subject.name} SET {new_values} WHERE {where}", subject.draw_values(chance) + key)
        cursor.execute("ROLLBACK TO SAVEPOINT here" if chance.random() < 0.6 else "RELEASE SAVEPOINT here")


def _keyless_operation(cursor: Cursor, chance: random.Random, subject: Subject) -> None:
    row = subject.draw_values(chance)
    kind = chance.randrange(3)
    if kind == 0:
        cursor.execute(f"INSERT INTO {subject.into}", row)
    elif kind == 1:
        cursor.execute(f"DELETE FROM {subject.name} WHERE a = %s LIMIT 2", row[:1])
    else:
        cursor.execute(f"UPDATE {subject.name} SET b = %s, c = %s WHERE a = %s LIMIT 2", (row[1], row[2], row[0]))
