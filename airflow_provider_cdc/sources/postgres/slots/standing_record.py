"""Reads and writes the record of a standing slot.

For each table, the record has the position since which the slot's publication has listed the table, and the state of
the table at that position. The record is the comment on the publication. So it is stored on the server that it
describes, is part of the server's backups, and is shared by all lakes that use the slot. Dropping the publication also
drops the record, and only the publication's owner can change the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.positions.facts import TIMELINE
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.users_code import execute
from airflow_provider_cdc.sources.postgres.server import timelines
from airflow_provider_cdc.sources.postgres.server.facts import MEANING
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, literal, query, quote, value
from airflow_provider_cdc.sources.postgres.slots import slots

_FORMAT = 1
_DAY = 24 * 3_600_000_000
KNOWN_DAYS = 7
"""How many days a copy stays in the record."""
_RUN = "run "
"""Prefix of the key of a run's own entry in `Standing.copies`. The rest of the key is the name of the run's slot.
Digests of lakes never begin with this prefix."""
_MONEY = (790, 791)
"""OIDs of the types ``money`` and ``money[]``. User-defined types may contain them."""


@dataclass(frozen=True)
class Joined:
    """A table in the publication. The log has all of its changes since ``position``.

    - ``at``: a time in microseconds since 1970. ``position`` was fixed before this time.
    - ``state``: the table's digest (`states_of`). As long as the table has this digest, its definition is unchanged.
    - ``why``: the reason, in words, why the past of the table begins at ``position``.
    - ``shape``: the digest of `shapes_of`. It has been the same since ``shape_position``, which was fixed before the
      time ``shape_at``. Empty: an earlier version of the provider wrote the record.
    - ``frame``: the digest of `frames_of`. It has been the same since ``frame_position``. Empty: as for ``shape``.
    """

    position: str
    at: int
    state: str
    why: str
    shape: str = ""
    shape_position: str = ""
    shape_at: int = 0
    frame: str = ""
    frame_position: str = ""


@dataclass(frozen=True)
class Mark:
    """An upper bound for commit times. Between the creation of the slot and ``position``, no transaction committed with
    a time later than ``latest``, in microseconds since 1970."""

    position: str
    latest: int


@dataclass(frozen=True)
class Join:
    """The position at which tables joined the standing slot. The position was fixed before the time ``at``."""

    position: str
    at: int


@dataclass(frozen=True)
class Published:
    """Copies of ``tables`` at ``position``. They were published before the time ``at``, in microseconds since 1970.

    ``wanted``: the copies may be rolled forward, so the log since ``position`` is needed.
    """

    position: str
    at: int
    tables: tuple[str, ...]
    wanted: bool


@dataclass(frozen=True)
class Standing:
    """The record of a standing slot.

    - ``beginning``: an id that changes whenever the slot is created again.
    - ``server``: the identity of the server. The positions are positions in the log of this server.
    - ``marks``: the marks, in the order of their positions.
    - ``joins``: all joins. If a table has joined again, its earlier joins are included, too.
    - ``tables``: the last join of each table, by table name.
    - ``publication``: the version of the publication (`publication_version`) since the slot was created. Empty: an
      earlier version of the provider wrote the record.
    - ``copies``: the last copies, by a digest of the lake's URI. The entry also has the positions of runs that have not
      recorded their copies yet (`with_run`).
    """

    beginning: str
    server: dict[str, str]
    marks: tuple[Mark, ...] = ()
    joins: tuple[Join, ...] = ()
    tables: dict[str, Joined] = field(default_factory=dict)
    copies: dict[str, tuple[Published, ...]] = field(default_factory=dict)
    publication: str = ""
    made_by: str = APPLICATION
    format: int = _FORMAT

    @property
    def last(self) -> Lsn:
        """The last of all positions in the record."""
        copies = (copy_noted for published in self.copies.values() for copy_noted in published)
        noted: list[Mark | Join | Joined | Published] = [*self.marks, *self.joins, *self.tables.values(), *copies]
        return max((Lsn.parse(one.position) for one in noted), default=Lsn(0))

    def since(self, confirmed: Lsn | None) -> tuple[Mark, ...]:
        """Return the marks at or after the slot's confirmed position. The slot still has the log since these marks."""
        return tuple(mark for mark in self.marks if confirmed is not None and Lsn.parse(mark.position) >= confirmed)

    def with_run(self, slot: str, position: Lsn, at: int) -> Standing:
        """Add the position that a run has just fixed, and remove positions of runs that are older than `KNOWN_DAYS`.

        The new entry shows that the position is part of this server's history. The entry has no tables, so earlier
        versions of the provider treat it as a copy without tables.
        """
        copies_kept = {
            lake: published
            for lake, published in self.copies.items()
            if not lake.startswith(_RUN) or any(copy_noted.at > at - KNOWN_DAYS * _DAY for copy_noted in published)
        }
        return replace(self, copies={**copies_kept, _RUN + slot: (Published(str(position), at, (), False),)})

    def without_run(self, slot: str) -> Standing:
        """Remove the entry that `with_run` added, because all copies of the run are recorded."""
        return replace(self, copies={lake: published for lake, published in self.copies.items() if lake != _RUN + slot})

    def with_copies(self, lake: str, copies: Mapping[str, Lsn], at: int, wanted: bool) -> Standing:
        """Add the last copies in a lake. Remove copies older than `KNOWN_DAYS`, because their lake may be gone.

        :param copies: the positions of the copies, by table name.
        :param wanted: whether the run that made the copies rolls copies forward. If a table's earlier copy in this lake
            was wanted, the new copy is wanted, too. So the next run can roll it forward even if this run read the table
            in full.
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
                    # If the clock was set back, the copy would otherwise stay until the clock has passed its time.
                    kept = replace(copy_noted, tables=tables, at=min(copy_noted.at, at))
                    copies_by_table.setdefault(lake_or_slot, []).append(kept)
        for position in sorted({*copies.values()}):
            own_tables = sorted(name for name in copies if copies[name] == position)
            for is_wanted in (True, False):
                if tables := tuple(name for name in own_tables if (name in rolled) == is_wanted):
                    copies_by_table.setdefault(lake, []).append(Published(str(position), at, tables, is_wanted))
        return replace(
            self, copies={lake_or_slot: tuple(published) for lake_or_slot, published in copies_by_table.items()}
        )

    def has_copy(self, table: str, position: Lsn, slot: str = "") -> bool:
        """Return whether the copy of a table at ``position`` belongs to the history of this server.

        The copy belongs to this history if the copy was recorded after it was published, or if the run that made the
        copy recorded the position.

        :param slot: the prefix of the slot names of the run that made the copy (`slots.name_of`).
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
        """Return the oldest wanted position that is at or after the slot's ``confirmed`` position.

        A long run may have published copies at a position that the slot has already passed. The log since such a
        position is gone, so keeping more log does not help these copies.
        """
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
        """Add a mark, in the order of the positions."""
        marks = {one.position: one for one in (*self.marks, mark)}
        return replace(self, marks=tuple(sorted(marks.values(), key=lambda one: Lsn.parse(one.position))))


def name_of(connection: Connection, name: str) -> str:
    """Return the name that the standing slot and its publication have on the server, given the name in the options.

    Slots belong to the whole server, so the name on the server contains the database.
    """
    return str(
        value(
            connection,
            "concat(%s::text, '_', (SELECT oid FROM pg_database WHERE datname = current_database()))",
            (f"{slots.STANDING}{name}",),
        )
    )


def ground(connection: Connection) -> dict[str, str]:
    """Return the server's identity. Recorded positions and digests are valid only while this identity is unchanged."""
    return identity(connection).of_server


def load(connection: Connection, name: str) -> Standing | None:
    """Return the record of a standing slot. None: there is no record, or this version cannot read it."""
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


def load_to_change(settings: ConnectionSettings, connection: Connection, name: str) -> Standing | None:
    """Return the record as `load` does. If a standby took over after all positions of the record, the record has the
    present timeline. Otherwise, a caller that adds a position would mix positions of two timelines."""
    record, server_now = load(connection, name), ground(connection)
    if record is None or why_of_another(settings, record, server_now):
        return record
    return replace(record, server=server_now)


def why_gone(record: Standing, server_now: Mapping[str, str]) -> str:
    """Return why a server has no slot for a record. ``server_now`` is the identity of the server (`ground`)."""
    if record.server.get(TIMELINE) == server_now[TIMELINE]:
        return "it was dropped"
    return (
        "a standby took over that did not have the slot. PostgreSQL 17 and later can keep it: set "
        "sync_replication_slots = on on the standbys"
    )


def why_of_another(settings: ConnectionSettings, record: Standing, server_now: Mapping[str, str]) -> str:
    """Return why the record is not of this server, nor of a primary from which this server took over after all
    positions of the record. Empty: it is."""
    changed = [part for part in server_now if record.server.get(part) != server_now[part]]
    if changed == [TIMELINE]:
        return timelines.why_not_here(settings, server_now[TIMELINE], record.server.get(TIMELINE, ""), record.last)
    return ", ".join(changed)


def publication_version(connection: Connection | Catalog, name: str) -> str:
    """Return the version of a publication's catalog row, which changes if the publication is renamed or altered, even
    if the change is undone. Tables may be added and dropped. Empty: there is no publication of this name."""
    rows = query(connection, "SELECT concat_ws('/', oid, xmin) FROM pg_publication WHERE pubname = %s", (name,))
    return str(rows[0][0]) if rows else ""


def store(connection: Connection, name: str, record: Standing) -> None:
    """Write the record. The caller must hold the lock of `alone`.

    Then commit a logical message, which changes no table. So a later time has a position after the positions in the
    record, even if no published table is changed in between (`commits`).
    """
    text = json.dumps(asdict(record), separators=(",", ":"))
    execute(connection, f"COMMENT ON PUBLICATION {quote(name)} IS {literal(text)}")
    emit_commit(connection)


def emit_commit(connection: Connection) -> None:
    """Commit a transaction that changes no table, and that pgoutput reports for any publication."""
    query(connection, "SELECT pg_logical_emit_message(true, %s, '')", (APPLICATION,))


def alone(connection: Connection, name: str, seconds: float) -> None:
    """Wait until no other session changes the standing slot or its record. After that, other sessions cannot change the
    slot or the record until this session ends."""
    query(connection, f"SET lock_timeout = '{max(1, round(seconds))}s'")
    query(connection, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"{APPLICATION} {name}",))
    query(connection, "RESET lock_timeout")


# If a schema was renamed and then renamed back, its catalog row has a new version.
_AROUND = """
SELECT c.oid, concat_ws('/', n.oid, n.xmin, c.relhassubclass,
    (SELECT string_agg(concat_ws('/', p.oid, p.xmin, r.oid, r.xmin), ',') FROM pg_publication p
     LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid WHERE p.pubname = %s))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""


def states_of(catalog: Catalog, name: str, tables: Sequence[Table]) -> dict[str, str]:
    """Return a digest of each table's current state, by table name.

    The digest changes whenever one of these changes, even if the change is undone: the table's definition, its file,
    its name, or the part of the table that the publication ``name`` publishes.
    """
    return _digests(catalog, name, tables)


def shapes_of(catalog: Catalog, name: str, tables: Sequence[Table]) -> dict[str, str]:
    """Return a digest of each table, by table name. The digest ignores some changes.

    In contrast to `states_of`, the digest does not include NOT NULL or the versions of the catalog rows of the table
    and its columns. So it stays the same if privileges, defaults or NOT NULL change, or if a rename is undone.
    `catalog_versions` finds out when these catalog rows were changed last.
    """

    def shaped(table: Table) -> Table:
        columns = tuple(
            replace(column, nullable=True, details={**column.details, "version": ""}) for column in table.columns
        )
        return replace(table, columns=columns, details={**table.details, "version": ""})

    return _digests(catalog, name, [shaped(table) for table in tables])


def frames_of(catalog: Catalog, name: str, tables: Sequence[Table]) -> dict[str, str]:
    """Return a digest of each table without its columns, by table name.

    The digest changes whenever the table's file, key, replica identity, partitions, name, place in the publication or
    the labels of its enums change, even if the change is undone (except for the name and the replica identity). As long
    as the digest is the same, the log has all changes of the rows and the present names of labels, and no statement
    rewrote the table.
    """

    def framed(table: Table) -> Table:
        labels = " ".join(sorted({str(column.details.get("labels", "")) for column in table.columns} - {""}))
        return replace(
            table, columns=(), details={**table.details, "version": "", **({"labels": labels} if labels else {})}
        )

    return _digests(catalog, name, [framed(table) for table in tables])


def _digests(catalog: Catalog, name: str, tables: Sequence[Table]) -> dict[str, str]:
    oids = {leaf.oid for table in tables for leaf in leaves(table)} | {table.details["oid"] for table in tables}
    around = dict(query(catalog, _AROUND, (name, list(oids))))
    meaning = value(catalog, f"current_setting('{MEANING}')")
    states = {}
    for table in tables:
        kinds = [column.details for column in table.columns]
        has_money = not kinds or any(kind["definition"] or kind["base_oid"] in _MONEY for kind in kinds)
        # Keys other than the recorded row key may be added and dropped. The entries ``via_root`` and ``as_root`` depend
        # on the publication, which some callers do not read.
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


def parents_among(catalog: Catalog, tables: Sequence[Table]) -> set[str]:
    """Return the names of the tables that have, or may have had, child tables (INHERITS), according to the catalog.

    For such a table, the server does not report when child tables were added and removed.
    """
    rows = query(
        catalog,
        "SELECT oid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relhassubclass",
        ([table.details["oid"] for table in tables],),
    )
    return {str(table.name) for table in tables if (table.details["oid"],) in rows}


def format_micros(micros: int) -> str:
    """Format a time in microseconds since 1970 in the form that `as_of` accepts."""
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def now(connection: Connection) -> int:
    """Return the server's clock time in microseconds since 1970."""
    return int(value(connection, "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"))
