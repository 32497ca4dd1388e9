"""Random schema changes on the tables of a history. Each of them leaves a table that can be copied."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SchemaChange:
    """The ``statements`` of a change. ``gone``: a table is missing for a moment, so a run may find that it was
    dropped.
    """

    name: str
    statements: Sequence[str]
    gone: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.statements[-1]}"


MYSQL_KEYED = ("integers", "names", "pairs", "blobs", "parted")
POSTGRES_PLAIN = ("integers", "names", "pairs", "blobs", "keyless")
_COLUMN: Mapping[str, Mapping[str, str]] = {
    "mysql": {"integers": "text", "names": "note", "pairs": "day", "blobs": "body", "parted": "note", "keyless": "b"},
    "postgres": {"integers": "big", "names": "body", "pairs": "day", "blobs": "body", "keyless": "b"},
}
"""A column of each table that is neither of its key nor required."""


def draw(chance: random.Random, kind: str, number: int) -> SchemaChange:
    """Draw a change for a database of this kind.

    :param number: of the change, which no other change of the same schema has.
    """
    return (_mysql if kind == "mysql" else _postgres)(chance, number)


def _mysql(chance: random.Random, number: int) -> SchemaChange:
    table = chance.choice([*MYSQL_KEYED, "keyless"])
    column = _COLUMN["mysql"][table]
    new, old, side = f"{table}_new{number}", f"{table}_old{number}", f"aside{number}"
    day = f"2026-1{chance.randrange(3)}-0{chance.randrange(1, 10)}"
    added = f"PARTITION q{number} VALUES LESS THAN ('{day}')"
    changes = (
        SchemaChange("truncate", [f"TRUNCATE TABLE {table}"]),
        SchemaChange(
            "swap",
            [
                f"CREATE TABLE {new} LIKE {table}",
                f"INSERT INTO {new} SELECT * FROM {table} LIMIT {chance.randrange(30)}",
                f"RENAME TABLE {table} TO {old}, {new} TO {table}",
            ],
        ),
        # Two renames in one statement: each of the tables takes the place of the other.
        SchemaChange(
            "exchange of names",
            [
                f"CREATE TABLE {new} LIKE {table}",
                f"RENAME TABLE {table} TO {old}, {new} TO {table}, {old} TO {new}",
            ],
        ),
        SchemaChange(
            "drop and create",
            [
                f"CREATE TABLE {new} LIKE {table}",
                f"DROP TABLE {table}",
                f"CREATE TABLE {table} LIKE {new}",
                f"INSERT INTO {table} SELECT * FROM {new}",
            ],
            gone=True,
        ),
        SchemaChange("add", [f"ALTER TABLE {table} ADD COLUMN extra{number} INT NOT NULL DEFAULT {number}"]),
        SchemaChange(
            "add in front",
            [f"ALTER TABLE {table} ADD COLUMN first{number} VARCHAR(9) DEFAULT 'é' FIRST, ALGORITHM=INSTANT"],
        ),
        SchemaChange("add by copy", [f"ALTER TABLE {table} ADD COLUMN copied{number} DATE NULL, ALGORITHM=COPY"]),
        SchemaChange("drop", [f"ALTER TABLE {table} DROP COLUMN {column}"]),
        SchemaChange(
            "drop and add",
            [f"ALTER TABLE {table} DROP COLUMN {column}", f"ALTER TABLE {table} ADD COLUMN {column} INT"],
        ),
        SchemaChange("rename", [f"ALTER TABLE {table} RENAME COLUMN {column} TO {column}_{number}"]),
        SchemaChange(
            "rename and back",
            [
                f"ALTER TABLE {table} RENAME COLUMN {column} TO {column}_{number}",
                f"ALTER TABLE {table} RENAME COLUMN {column}_{number} TO {column}",
            ],
        ),
        SchemaChange("widen", [f"ALTER TABLE names MODIFY mood ENUM('calm','glad','über','new{number}')"]),
        SchemaChange("type", ["ALTER TABLE integers MODIFY big DECIMAL(30,0)"]),
        SchemaChange("key", ["ALTER TABLE pairs DROP PRIMARY KEY, ADD PRIMARY KEY (number, code)"]),
        SchemaChange("rebuild", [f"ALTER TABLE {table} ENGINE=InnoDB"]),
        SchemaChange(
            "add partition",
            [f"ALTER TABLE parted REORGANIZE PARTITION p1 INTO ({added}, PARTITION p1 VALUES LESS THAN (MAXVALUE))"],
        ),
        SchemaChange("drop partition", ["ALTER TABLE parted DROP PARTITION p0"]),
        SchemaChange("truncate partition", ["ALTER TABLE parted TRUNCATE PARTITION p1"]),
        SchemaChange(
            "exchange partition",
            [
                f"CREATE TABLE {side} LIKE parted",
                f"ALTER TABLE {side} REMOVE PARTITIONING",
                f"INSERT INTO {side} SELECT * FROM parted PARTITION (p1) LIMIT {chance.randrange(20)}",
                f"ALTER TABLE parted EXCHANGE PARTITION p1 WITH TABLE {side}",
            ],
        ),
    )
    return chance.choice(changes)


def _postgres(chance: random.Random, number: int) -> SchemaChange:
    table = chance.choice(POSTGRES_PLAIN)
    column = _COLUMN["postgres"][table]
    new, old = f"{table}_new{number}", f"{table}_old{number}"
    quiet = "vacuum_truncate = off, toast.vacuum_truncate = off"
    place = 30 + 10 * number

    def transaction(*statements: str) -> str:
        return "; ".join(("BEGIN", *statements, "COMMIT"))

    def like(name: str, other: str) -> str:
        return (
            f"CREATE TABLE {name} (LIKE {other} INCLUDING ALL); ALTER TABLE {name} REPLICA IDENTITY FULL; "
            f"ALTER TABLE {name} SET ({quiet})"
        )

    changes = (
        SchemaChange("truncate", [f"TRUNCATE {table}"]),
        SchemaChange("truncate all leaves", ["TRUNCATE parted"]),
        SchemaChange("truncate a leaf", ["TRUNCATE parted_low"]),
        SchemaChange("truncate two", ["TRUNCATE integers, keyless"]),
        SchemaChange(
            "swap",
            [
                transaction(
                    like(new, table),
                    f"LOCK TABLE {table}",
                    f"INSERT INTO {new} SELECT * FROM {table} LIMIT {chance.randrange(30)}",
                    f"ALTER TABLE {table} RENAME TO {old}",
                    f"ALTER TABLE {new} RENAME TO {table}",
                )
            ],
        ),
        SchemaChange(
            "drop and create",
            [
                transaction(
                    like(new, table),
                    f"LOCK TABLE {table}",
                    f"INSERT INTO {new} SELECT * FROM {table}",
                    f"DROP TABLE {table}",
                    f"ALTER TABLE {new} RENAME TO {table}",
                )
            ],
        ),
        SchemaChange("add", [f"ALTER TABLE {table} ADD extra{number} integer NOT NULL DEFAULT {number}"]),
        SchemaChange("add volatile", [f"ALTER TABLE {table} ADD noise{number} double precision DEFAULT random()"]),
        SchemaChange("drop", [f"ALTER TABLE {table} DROP {column}"]),
        SchemaChange(
            "drop and add", [f"ALTER TABLE {table} DROP {column}", f"ALTER TABLE {table} ADD {column} integer"]
        ),
        SchemaChange("rename", [f"ALTER TABLE {table} RENAME {column} TO {column}_{number}"]),
        SchemaChange(
            "rename and back",
            [
                f"ALTER TABLE {table} RENAME {column} TO {column}_{number}",
                f"ALTER TABLE {table} RENAME {column}_{number} TO {column}",
            ],
        ),
        SchemaChange("undone", [f"BEGIN; ALTER TABLE {table} ADD never integer; TRUNCATE {table}; ROLLBACK"]),
        SchemaChange("type", ["ALTER TABLE integers ALTER big TYPE numeric"]),
        SchemaChange("precision", [f"ALTER TABLE integers ALTER amount TYPE numeric({31 + number % 5},6)"]),
        SchemaChange("key", ["ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (number, code)"]),
        SchemaChange("rewrite", [f"VACUUM FULL {table}"]),
        SchemaChange(
            "attach",
            [
                transaction(
                    like(new, "parted"),
                    f"INSERT INTO {new} SELECT {place}, i, 'attached' FROM generate_series(1, 9) i",
                    f"ALTER TABLE parted ATTACH PARTITION {new} FOR VALUES FROM ({place}) TO ({place + 10})",
                )
            ],
        ),
        SchemaChange("detach", ["ALTER TABLE parted DETACH PARTITION parted_high"]),
        SchemaChange("drop a leaf", ["DROP TABLE parted_low"]),
    )
    return chance.choice(changes)
