"""Random histories on PostgreSQL: tables of every kind, and writers that make every change that the log can record.

A history is drawn from a seed. The server determines how its writers interleave, so a seed names a family of histories,
not one history. A failure prints the seed all the same, because families differ in what they provoke.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.consistency.writing import PAUSE, Write

Connection = psycopg.Connection[tuple[Any, ...]]

_ENDED = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.IntegrityError,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
)
"""What ends a transaction and is no error here."""


@dataclass(frozen=True)
class Subject:
    """A table of the history: its columns, its key, and how to draw the key and the other columns.

    ``casts`` are the types in which to select columns whose published values look otherwise to Python: those that are
    published as text, and ``real``, of which Python knows no type. ``made`` are generated columns, the last ones.
    ``identity`` is a statement that says how the log identifies rows; empty: it does as the history says for all.
    """

    name: str
    columns: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    draw_key: Callable[[random.Random], tuple[Any, ...]]
    draw_values: Callable[[random.Random], tuple[Any, ...]]
    casts: Mapping[str, str] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    identity: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return self.key + self.values

    def row(self, chance: random.Random) -> tuple[Any, ...]:
        return self.draw_key(chance) + self.draw_values(chance)


def _large(chance: random.Random) -> str | None:
    """A text that is stored out of line (TOAST) as often as not."""
    return chance.choice([None, "short", "".join(chance.choices("abcdefgh", k=6)) * chance.randrange(800, 4000)])


SUBJECTS = (
    Subject(
        "integers",
        "id integer PRIMARY KEY, big bigint, amount numeric(30,6) NOT NULL, at timestamptz, ok boolean",
        ("id",),
        ("big", "amount", "at", "ok"),
        lambda chance: (chance.randrange(-300, 700),),
        lambda chance: (
            chance.choice([None, chance.randrange(-(2**63), 2**63)]),
            f"{chance.randrange(-(10**20), 10**20)}.{chance.randrange(10**6):06}",
            chance.choice([None, f"2026-03-{chance.randrange(1, 29):02} 12:00:00.{chance.randrange(10**6):06}+00"]),
            chance.choice([None, True, False]),
        ),
    ),
    Subject(
        "names",
        "name text PRIMARY KEY, body text, ratio double precision NOT NULL, small real",
        ("name",),
        ("body", "ratio", "small"),
        lambda chance: (chance.choice(["alpha", "Beta", "ß", "Épsilon", "naïve", ""]) + str(chance.randrange(60)),),
        lambda chance: (
            _large(chance),
            chance.random() * 10.0 ** chance.randrange(-10, 10),
            chance.choice([None, 0.1]),
        ),
        {"small": "double precision"},
    ),
    Subject(
        "pairs",
        "code char(8), number smallint, day date, span time(3), tags text[], PRIMARY KEY (code, number)",
        ("code", "number"),
        ("day", "span", "tags"),
        lambda chance: (chance.choice(["aa", "AA", "bB", "c ", "dddddddd"]), chance.randrange(100)),
        lambda chance: (
            chance.choice([None, f"19{chance.randrange(100):02}-05-17"]),
            chance.choice([None, f"{chance.randrange(24)}:59:59.125"]),
            chance.choice([None, [], ["a", 'b "quoted"', None, "{}"]]),
        ),
        {"tags": "text"},
    ),
    Subject(
        "blobs",
        "token bytea PRIMARY KEY, body bytea, flags bit(9) NOT NULL, document jsonb, plain json",
        ("token",),
        ("body", "flags", "document", "plain"),
        lambda chance: (bytes([chance.randrange(4), chance.randrange(100), 0]),),
        lambda chance: (
            chance.choice([None, chance.randbytes(chance.randrange(80)), chance.randbytes(3000)]),
            f"{chance.randrange(512):09b}",
            chance.choice([None, '{"b": [1, 2.50, null], "a": "é"}', f'{{"n": {chance.randrange(10**6)}}}']),
            chance.choice([None, '{"b":  1, "b": 2}']),
        ),
        {"flags": "text", "document": "text", "plain": "text"},
    ),
    Subject(
        "parted",
        "place integer, id integer, note text, PRIMARY KEY (place, id)",
        ("place", "id"),
        ("note",),
        # Another place, often in another partition: the row moves.
        lambda chance: (chance.randrange(30), chance.randrange(20)),
        lambda chance: (_large(chance),),
        leaves=("parted_low", "parted_high", "parted_rest"),
    ),
    Subject(
        "keyless",
        "a integer NOT NULL, b text, c real",
        (),
        ("a", "b", "c"),
        lambda chance: (),
        lambda chance: (
            chance.randrange(40),
            chance.choice([None, "same", "Same", _large(chance)]),
            chance.choice([None, 0.1, 2.5]),
        ),
        {"c": "double precision"},
    ),
)


ONES = ("1", "1.0", "1.00", "1.000")
"""One number, in texts that all differ."""

AGAIN = (
    *SUBJECTS,
    Subject(
        "amounts",
        "amount numeric, day date, note text, PRIMARY KEY (amount, day)",
        ("amount", "day"),
        ("note",),
        lambda chance: (f"{chance.randrange(9)}{chance.choice(ONES)[1:]}", f"2026-05-{chance.randrange(1, 7):02}"),
        lambda chance: (_large(chance),),
        {"amount": "text"},
    ),
    Subject(
        "spans",
        "span interval, ratio double precision, note text, PRIMARY KEY (span, ratio)",
        ("span", "ratio"),
        ("note",),
        lambda chance: (
            chance.choice(["1 day", "24:00:00", "1 mon", "30 days", "720:00:00", f"{chance.randrange(20)} min"]),
            chance.choice(["0", "-0", "NaN", "Infinity", f"{chance.randrange(20)}.1"]),
        ),
        lambda chance: (_large(chance),),
        {"span": "text"},
    ),
    Subject(
        "lists",
        "tags text[], token uuid, note text, PRIMARY KEY (tags, token)",
        ("tags", "token"),
        ("note",),
        lambda chance: (
            chance.choice([[], ["a", "b"], [None, "NULL", 'it\'s "quoted"'], ["\\", "{}"]]),
            f"00000000-0000-4000-8000-0000000000{chance.randrange(40):02}",
        ),
        lambda chance: (_large(chance),),
        {"tags": "text", "token": "text"},
    ),
    Subject(
        "indexed",
        "code varchar(9) NOT NULL, at timestamptz NOT NULL, note text, UNIQUE (at, code)",
        ("code", "at"),
        ("note",),
        lambda chance: (
            chance.choice(["a'b", "ß", "", "\\n"]),
            f"2026-03-29 0{chance.randrange(5)}:30:00.00000{chance.randrange(9)}+0{chance.randrange(2)}",
        ),
        lambda chance: (_large(chance),),
        identity="ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_at_code_key",
    ),
    Subject(
        "long",
        "name text PRIMARY KEY, number integer",
        ("name",),
        ("number",),
        # Stored out of line: an UPDATE repeats it only as the old key.
        lambda chance: (chance.choice("abc") * (200_000 + chance.randrange(20)),),
        lambda chance: (chance.randrange(1000),),
    ),
    Subject(
        "made",
        "id integer PRIMARY KEY, base integer, note text, twice integer GENERATED ALWAYS AS (2 * base) STORED",
        ("id",),
        ("base", "note"),
        lambda chance: (chance.randrange(200),),
        lambda chance: (chance.randrange(10**6), _large(chance)),
        made=("twice",),
    ),
    Subject(
        "unnamed",
        "id integer PRIMARY KEY, note text",
        ("id",),
        ("note",),
        lambda chance: (chance.randrange(200),),
        lambda chance: (_large(chance),),
        identity="ALTER TABLE unnamed REPLICA IDENTITY NOTHING",
    ),
)
"""Tables that can be copied without REPLICA IDENTITY FULL."""


def create(
    connection: Connection,
    schema: str,
    seed: int,
    rows: int,
    subjects: Sequence[Subject] = SUBJECTS,
    identity: str = "FULL",
) -> None:
    """Make the tables in ``schema`` (which exists) and about ``rows`` rows in each."""
    chance = random.Random(f"{seed}/rows")
    connection.execute(f"SET search_path TO {schema}")
    connection.execute("SET TimeZone TO 'UTC'")
    for subject in subjects:
        parted = " PARTITION BY RANGE (place)" if subject.leaves else ""
        connection.execute(f"CREATE TABLE {subject.name} ({subject.columns}){parted}")
        if subject.leaves:
            connection.execute("CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
            connection.execute("CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
            connection.execute("CREATE TABLE parted_rest PARTITION OF parted DEFAULT")
        for table in (subject.name, *subject.leaves):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        for table in subject.leaves or (subject.name,):
            # A recovery that pauses while empty pages are truncated keeps the lock, so its readers would wait forever.
            connection.execute(f"ALTER TABLE {table} SET (vacuum_truncate = off, toast.vacuum_truncate = off)")
        if subject.identity:
            connection.execute(subject.identity)
        with connection.cursor() as cursor:
            cursor.executemany(_insert(subject), [subject.row(chance) for _ in range(rows)])


def select(schema: str, subject: Subject) -> str:
    """All rows of a table, in the values that the published files give back."""
    names = [
        f"{name}::{subject.casts[name]}" if name in subject.casts else name for name in (*subject.names, *subject.made)
    ]
    return f"SELECT {', '.join(names)} FROM {schema}.{subject.name}"


def write(
    connect: Callable[..., Connection], schema: str, pause: float = PAUSE, subjects: Sequence[Subject] = SUBJECTS
) -> Write:
    """Transactions on a history's tables, for `Writing`, with up to ``pause`` seconds between them."""

    def writing(chance: random.Random, stop: threading.Event) -> None:
        with contextlib.closing(connect()) as connection:
            connection.execute(f"SET search_path TO {schema}")
            connection.execute("SET TimeZone TO 'UTC'")
            connection.execute("SET lock_timeout = '1s'")
            while not stop.is_set():
                _one(connection, chance, subjects)
                time.sleep(pause * chance.random())

    return writing


def vacuum(connect: Callable[..., Connection], schema: str, subjects: Sequence[Subject] = SUBJECTS) -> Write:
    """VACUUM between the chunks: it prunes and frees line pointers, and their space is reused."""

    def writing(chance: random.Random, stop: threading.Event) -> None:
        with contextlib.closing(connect()) as connection:
            while not stop.is_set():
                connection.execute(f"VACUUM {schema}.{chance.choice(subjects).name}")
                stop.wait(0.05 * chance.random())

    return writing


def _insert(subject: Subject) -> str:
    marks = ", ".join(["%s"] * len(subject.names))
    conflict = " ON CONFLICT DO NOTHING" if subject.key else ""
    return f"INSERT INTO {subject.name} VALUES ({marks}){conflict}"


def _one(connection: Connection, chance: random.Random, subjects: Sequence[Subject]) -> None:
    connection.execute(f"SET synchronous_commit = {chance.choice(['on', 'off', 'local'])}")
    try:
        connection.execute(f"BEGIN ISOLATION LEVEL {chance.choice(['READ COMMITTED', 'REPEATABLE READ'])}")
        for _ in range(chance.choice([1, 1, 2, 4])):
            _operation(connection, chance, subjects)
        _end(connection, chance)
    except _ENDED:
        connection.execute("ROLLBACK")


def _end(connection: Connection, chance: random.Random) -> None:
    how = chance.random()
    if how < 0.08:
        name = uuid.uuid4().hex
        connection.execute(f"PREPARE TRANSACTION '{name}'")
        # Time in which other transactions, and perhaps a position, come between its rows and its commit.
        time.sleep(chance.random() * 0.15)
        connection.execute(f"{'ROLLBACK' if how < 0.015 else 'COMMIT'} PREPARED '{name}'")
    else:
        connection.execute("ROLLBACK" if how < 0.18 else "COMMIT")


def _operation(connection: Connection, chance: random.Random, subjects: Sequence[Subject]) -> None:
    subject = chance.choice(subjects)
    if not subject.key:
        _keyless_operation(connection, chance, subject)
        return
    where = " AND ".join(f"{name} = %s" for name in subject.key)
    key = subject.draw_key(chance)
    kind = chance.randrange(9)
    if kind == 0:
        connection.execute(_insert(subject), subject.row(chance))
    elif kind == 1:
        _update(connection, subject, subject.values, subject.draw_values(chance), where, key)
    elif kind == 2:
        _update(connection, subject, subject.key, subject.draw_key(chance), where, key)
    elif kind == 3:
        connection.execute(f"DELETE FROM {subject.name} WHERE {where}", key)
    elif kind == 4:
        connection.execute(f"DELETE FROM {subject.name} WHERE {where}", key)
        connection.execute(_insert(subject), key + subject.draw_values(chance))
    elif kind == 5:
        one = chance.randrange(len(subject.values))
        # Only one column: an update that touches no index column can stay on its page (HOT), and large values stay
        # where they are.
        _update(connection, subject, subject.values[one:][:1], subject.draw_values(chance)[one:][:1], where, key)
    elif kind == 6:
        values = ", ".join(f"{name} = excluded.{name}" for name in subject.values)
        upsert = f"({', '.join(subject.key)}) DO UPDATE SET {values}"
        connection.execute(_insert(subject).replace("DO NOTHING", upsert), subject.row(chance))
    elif kind == 7:
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            _copy(connection, chance, subject)
    else:
        connection.execute("SAVEPOINT here")
        _update(connection, subject, subject.values, subject.draw_values(chance), where, key)
        connection.execute("SAVEPOINT deeper")
        connection.execute(f"DELETE FROM {subject.name} WHERE {where}", key)
        connection.execute("ROLLBACK TO SAVEPOINT deeper")
        connection.execute("ROLLBACK TO SAVEPOINT here" if chance.random() < 0.5 else "RELEASE SAVEPOINT here")


def _update(
    connection: Connection,
    subject: Subject,
    names: Sequence[str],
    values: Sequence[Any],
    where: str,
    key: Sequence[Any],
) -> None:
    changes = ", ".join(f"{name} = %s" for name in names)
    connection.execute(f"UPDATE {subject.name} SET {changes} WHERE {where}", [*values, *key])


def _copy(connection: Connection, chance: random.Random, subject: Subject) -> None:
    """Insert a few rows by COPY, in a subtransaction: one duplicate aborts all of them."""
    with (
        connection.transaction(),
        connection.cursor() as cursor,
        cursor.copy(f"COPY {subject.name} ({', '.join(subject.names)}) FROM STDIN") as copy,
    ):
        for _ in range(chance.randrange(1, 4)):
            copy.write_row(subject.row(chance))


def _keyless_operation(connection: Connection, chance: random.Random, subject: Subject) -> None:
    row = subject.draw_values(chance)
    some = f"ctid = ANY(ARRAY(SELECT ctid FROM {subject.name} WHERE a = %s LIMIT 2))"
    kind = chance.randrange(4)
    if kind == 0:
        connection.execute(_insert(subject), row)
    elif kind == 1:
        connection.execute(f"DELETE FROM {subject.name} WHERE {some}", row[:1])
    elif kind == 2:
        connection.execute(f"UPDATE {subject.name} SET b = %s, c = %s WHERE {some}", (row[1], row[2], row[0]))
    else:
        _copy(connection, chance, subject)
