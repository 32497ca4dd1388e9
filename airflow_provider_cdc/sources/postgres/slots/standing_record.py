"""What is on record of a standing slot: since when its publication tells of each table, and what each was like then.

The record is the comment on the publication. So it is on the server that it speaks of, in its backups, for every lake
that shares the slot; whoever drops the publication drops it, too; and only the publication's owner can change it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, literal, query, quote, value
from airflow_provider_cdc.sources.postgres.slots import slots

_FORMAT = 1
_DAY = 24 * 3_600_000_000
KNOWN_DAYS = 7
"""So long a copy stays on record."""
_RUN = "run "
"""What the key of a run's own entry in `Standing.copies` begins with; the name of the run's slot follows. Digests of
lakes do not begin with it."""
_MONEY = (790, 791)
"""The types ``money`` and ``money[]``; others that somebody made may have it in them."""


@dataclass(frozen=True)
class Joined:
    """A table that the publication tells of: everything since ``position``, which was fixed by the time ``at``, in
    microseconds since 1970.

    ``state`` is of `states_of`, and was the same all the time as long as it still is. ``why`` says, in words, why its
    past begins there.
    """

    position: str
    at: int
    state: str
    why: str


@dataclass(frozen=True)
class Mark:
    """No transaction that commits before ``position``, since the slot was made, has a commit time later than
    ``latest``, in microseconds since 1970."""

    position: str
    latest: int


@dataclass(frozen=True)
class Join:
    """Tables joined at ``position``, which was fixed by the time ``at``."""

    position: str
    at: int


@dataclass(frozen=True)
class Published:
    """Copies of ``tables`` at ``position`` were published by the time ``at``, in microseconds since 1970. ``wanted``:
    they may be rolled forward, so the log since then is wanted."""

    position: str
    at: int
    tables: tuple[str, ...]
    wanted: bool


@dataclass(frozen=True)
class Standing:
    """The record. ``beginning`` is another one whenever the slot is made anew. ``server`` says which server's log the
    positions are of. ``tables`` is by the table's name. ``marks`` are in the order of their positions. ``joins`` has
    also those of tables that have joined anew since. ``copies`` are the last ones, by a digest of the lake's URI; and
    the positions of runs that have not recorded their copies yet (`with_run`)."""

    beginning: str
    server: dict[str, str]
    marks: tuple[Mark, ...] = ()
    joins: tuple[Join, ...] = ()
    tables: dict[str, Joined] = field(default_factory=dict)
    copies: dict[str, tuple[Published, ...]] = field(default_factory=dict)
    made_by: str = APPLICATION
    format: int = _FORMAT

    def since(self, confirmed: Lsn | None) -> tuple[Mark, ...]:
        """The marks of which the slot still has the log, given where it stands."""
        return tuple(mark for mark in self.marks if confirmed is not None and Lsn.parse(mark.position) >= confirmed)

    def with_run(self, slot: str, position: Lsn, at: int) -> Standing:
        """With the position of a run that has just been fixed, so in the history of this server, and without those that
        are older than `KNOWN_DAYS`. It has no tables: earlier versions take it for a copy of none."""
        copies_kept = {
            lake: published
            for lake, published in self.copies.items()
            if not lake.startswith(_RUN) or any(copy_noted.at > at - KNOWN_DAYS * _DAY for copy_noted in published)
        }
        return replace(self, copies={**copies_kept, _RUN + slot: (Published(str(position), at, (), False),)})

    def without_run(self, slot: str) -> Standing:
        """Without what `with_run` recorded: all copies of the run are recorded."""
        return replace(self, copies={lake: published for lake, published in self.copies.items() if lake != _RUN + slot})

    def with_copies(self, lake: str, copies: Mapping[str, Lsn], at: int, wanted: bool) -> Standing:
        """With the last copies in a lake, their positions by the table's name, and without those that nobody has
        replaced for `KNOWN_DAYS`: that lake may be gone.

        :param wanted: the run that made them rolls copies forward. Where earlier ones did, the next one is to be able
            to, whoever had the tables read in full in between.
        """
        copies_by_table: dict[str, list[Published]] = {}
        rolled: set[str] = {*copies} if wanted else set()
        for lake_or_slot, published in self.copies.items():
            for copy_noted in published:
                if copy_noted.at <= at - KNOWN_DAYS * _DAY:
                    continue
                if lake_or_slot == lake and copy_noted.wanted:
                    rolled |= {*copy_noted.tables}
                tables = tuple(name for name in copy_noted.tables if lake_or_slot != lake or name not in copies)
                if tables or lake_or_slot.startswith(_RUN):
                    copies_by_table.setdefault(lake_or_slot, []).append(replace(copy_noted, tables=tables))
        for position in sorted({*copies.values()}):
            own_tables = sorted(name for name in copies if copies[name] == position)
            for is_wanted in (True, False):
                if tables := tuple(name for name in own_tables if (name in rolled) == is_wanted):
                    copies_by_table.setdefault(lake, []).append(Published(str(position), at, tables, is_wanted))
        return replace(
            self, copies={lake_or_slot: tuple(published) for lake_or_slot, published in copies_by_table.items()}
        )

    def has_copy(self, table: str, position: Lsn, slot: str = "") -> bool:
        """Whether the copy of a table at that position is of the history of this server: it was recorded after it was
        published, or the run that made it recorded its position.

        :param slot: what the name of that run's slot begins with (`slots.name_of`).
        """
        at_position = [
            (lake, copy_noted)
            for lake, published in self.copies.items()
            for copy_noted in published
            if Lsn.parse(copy_noted.position) == position
        ]
        return any(
            table in copy_noted.tables
            or (slot and lake.startswith(_RUN) and slots.without_token(lake[len(_RUN) :]) == slot)
            for lake, copy_noted in at_position
        )

    def wanted(self, confirmed: Lsn | None) -> Lsn | None:
        """The oldest position since which the log is wanted, of those since which the slot still has it: a run that
        took long may have made copies at an earlier one, and keeping more log does not help them."""
        positions = (
            Lsn.parse(copy_noted.position)
            for published in self.copies.values()
            for copy_noted in published
            if copy_noted.wanted
        )
        return min(
            (copy_noted for copy_noted in positions if confirmed is not None and copy_noted >= confirmed), default=None
        )

    def with_mark(self, mark: Mark) -> Standing:
        """With another mark, in its place."""
        marks = {one.position: one for one in (*self.marks, mark)}
        return replace(self, marks=tuple(sorted(marks.values(), key=lambda one: Lsn.parse(one.position))))


def name_of(connection: Connection, name: str) -> str:
    """What the standing slot of this database that users call ``name`` is called, and its publication.

    Slots are the server's, so the database is part of it.
    """
    return str(
        value(
            connection,
            "concat(%s::text, '_', (SELECT oid FROM pg_database WHERE datname = current_database()))",
            (f"{slots.STANDING}{name}",),
        )
    )


def ground(connection: Connection) -> dict[str, str]:
    """What has to be the same for positions and digests on record to mean anything."""
    server_identity = identity(connection)
    return {name: server_identity[name] for name in session_setup.OF_THE_SERVER}


def load(connection: Connection, name: str) -> Standing | None:
    """What is on record of a standing slot; None if nothing is, or nothing that this version understands."""
    rows = query(
        connection, "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", (name,)
    )
    if not rows or not rows[0][0]:
        return None
    with suppress(ValueError, ManifestError):
        record = records.decode(Standing, json.loads(rows[0][0]), f"the comment on publication {name}")
        if record.format == _FORMAT:
            return record
    return None


def store(connection: Connection, name: str, record: Standing) -> None:
    """Put ``record`` on record. The caller is `alone`."""
    text = json.dumps(asdict(record), separators=(",", ":"))
    execute(connection, f"COMMENT ON PUBLICATION {quote(name)} IS {literal(text)}")


def alone(connection: Connection, name: str, seconds: float) -> None:
    """Wait until no other session changes the standing slot or its record; this one may until it ends."""
    query(connection, f"SET lock_timeout = '{max(1, round(seconds))}s'")
    query(connection, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"{APPLICATION} {name}",))
    query(connection, "RESET lock_timeout")


# A schema that is renamed and named back leaves another version of its row.
_AROUND = """
SELECT c.oid, concat_ws('/', n.oid, n.xmin, c.relhassubclass,
    (SELECT string_agg(concat_ws('/', p.oid, p.xmin, r.oid, r.xmin), ',') FROM pg_publication p
     LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid WHERE p.pubname = %s))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""


def states_of(connection: Connection, name: str, tables: Sequence[Table]) -> dict[str, str]:
    """A digest of each table as it is now, by its name: another one after any change to its definition, to its file, to
    what it is called, or to what the publication ``name`` tells of it, even one that was undone."""
    oids = {leaf.oid for table in tables for leaf in leaves(table)} | {table.details["oid"] for table in tables}
    around = dict(query(connection, _AROUND, (name, list(oids))))
    meaning = value(connection, f"current_setting('{session_setup.MEANING}')")
    states = {}
    for table in tables:
        kinds = [column.details for column in table.columns]
        has_money = any(kind["definition"] or kind["base_oid"] in _MONEY for kind in kinds)
        # Other keys than the one that tells rows apart may come and go. And not all callers read the publication.
        left_out = ("keys", "via_root", "as_root")
        details = {part: detail for part, detail in table.details.items() if part not in left_out}
        surroundings = [
            around.get(oid, "") for oid in sorted({table.details["oid"], *(leaf.oid for leaf in leaves(table))})
        ]
        encoded_state = records.encode(
            [str(table.name), table.columns, table.key, details, surroundings, has_money and meaning]
        )
        states[str(table.name)] = hashlib.sha256(json.dumps(encoded_state, sort_keys=True).encode()).hexdigest()[:32]
    return states


def parents_among(connection: Connection, tables: Sequence[Table]) -> set[str]:
    """The tables that have or had others inherit from them, or still seem to, by their names: of such a table, the
    server does not tell when others came and went."""
    rows = query(
        connection,
        "SELECT oid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relhassubclass",
        ([table.details["oid"] for table in tables],),
    )
    return {str(table.name) for table in tables if (table.details["oid"],) in rows}


def said(micros: int) -> str:
    """A time in microseconds since 1970 as `as_of` takes it."""
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def now(connection: Connection) -> int:
    """The server's clock, in microseconds since 1970."""
    return int(value(connection, "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"))
