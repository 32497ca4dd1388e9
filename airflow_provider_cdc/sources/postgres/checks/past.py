"""Checks of a run that is exact at a past position (`Source.check_past`).

Since that position, the log must have all changes of the tables, and the tables must not have been altered. The record
of the standing slot shows whether both conditions hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from airflow_provider_cdc.core.checks import Check, Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import identity_problem
from airflow_provider_cdc.sources.postgres.catalog.schema import NO_ROOM, leaves, read_tables, without_room
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext
from airflow_provider_cdc.sources.postgres.checks.tables import RELATIONS, ROWS_ELSEWHERE
from airflow_provider_cdc.sources.postgres.server.facts import PublicationState
from airflow_provider_cdc.sources.postgres.server.session import Connection, quote
from airflow_provider_cdc.sources.postgres.slots import publications
from airflow_provider_cdc.sources.postgres.slots.catalog_versions import Asked, already_so
from airflow_provider_cdc.sources.postgres.slots.publications import publication_problems
from airflow_provider_cdc.sources.postgres.slots.standing_record import (
    Joined,
    Mark,
    Standing,
    format_micros,
    parents_among,
    states_of,
)

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)


@dataclass(frozen=True)
class Past:
    """A standing slot of the server: its name, its record, its marks, and its position.

    ``looked_up``: by table name, whether the table already had its present definition at the position of the run.
    """

    name: str
    record: Standing
    marks: tuple[Mark, ...]
    confirmed: Lsn
    looked_up: dict[str, bool] = field(default_factory=dict, compare=False)

    @property
    def earliest(self) -> str:
        """A hint that names the earliest time and position since which the slot still has the log."""
        return (
            f"set `as_of` to {format_micros(self.marks[0].latest)} or later, or to the LSN {self.confirmed} or a "
            "greater LSN"
        )


@dataclass(kw_only=True)
class PastContext(CatalogContext):
    """The tables of a run that is exact at a past position.

    ``unanswered`` has the questions to the log (`already_so`) that came up, and that `Past.looked_up` does not answer.
    They are answered without the snapshot, and then the checks run again.
    """

    past: Past
    position: Lsn
    as_of: AsOf
    unanswered: list[Asked] = field(default_factory=list)

    @cached_property
    def parents(self) -> set[str]:
        """The names of tables from which other tables inherit, or may have inherited earlier."""
        return parents_among(self.connection, self.tables)

    @cached_property
    def closed(self) -> set[str]:
        """The names of partitioned tables to which no further partition can be attached (`catalog.schema`)."""
        return without_room(self.connection, self.tables)

    def already_so(self, joins: Sequence[tuple[Table, Joined]]) -> set[str]:
        """Return the names of the tables that already had their present definitions at the run's position
        (`catalog_versions.already_so`) as far as it is known, given when each table joined the standing slot."""
        looked_up = self.past.looked_up
        self.unanswered += [
            Asked(table, joined, self.position)
            for table, joined in joins
            if str(table.name) not in looked_up
            and not (isinstance(self.as_of, datetime) and micros(self.as_of) < joined.shape_at)
        ]
        return {str(table.name) for table, _ in joins if looked_up.get(str(table.name))}

    def had_others(self, table: Table) -> bool:
        """Return whether a table may have had partitions or children that left no trace."""
        kind, name = table.details["kind"], str(table.name)
        return (kind == "p" and name not in self.closed) or (kind == "r" and name in self.parents)


def micros(when: datetime) -> int:
    """Return a time in microseconds since 1970, as in the record of a standing slot."""
    return (when - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _publication(context: PastContext) -> Iterable[Problem]:
    recorded = context.past.record.tables
    required = [
        table
        for table in context.tables
        if str(table.name) in recorded and (table.details["kind"] == "r" or str(table.name) in context.closed)
    ]
    return publication_problems(context.connection, context.past.name, required)


def _identities(context: PastContext) -> Iterable[Problem]:
    for table in context.tables:
        if (problem := identity_problem(table)) is not None:
            yield problem


def _trees(context: PastContext) -> Iterable[Problem]:
    for table in context.tables:
        where = str(table.name)
        if identity_problem(table) is not None or not context.had_others(table):
            continue
        if table.details["kind"] == "p":
            yield Problem(
                where,
                "more partitions can be added to the table. If a partition was added and removed again, the catalog "
                "does not show this, so the past state of the table cannot be determined",
                f"if a run copies this table, leave the option `as_of` empty. `as_of` is possible for {NO_ROOM}",
                where,
            )
        else:
            yield Problem(
                where,
                "other tables inherited from this table in the past. If a child table was added and removed again "
                "after that, the catalog does not show this",
                f"ANALYZE {quote(table.name.schema, table.name.name)}; from the next run on, `as_of` is then possible "
                "for this table",
                where,
            )


def _record(context: PastContext) -> Iterable[Problem]:
    past, position, as_of = context.past, context.position, context.as_of
    states = states_of(context.connection, past.name, context.tables)
    tables = [table for table in context.tables if identity_problem(table) is None and not context.had_others(table)]
    joined_later = [
        (table, joined)
        for table in tables
        if (joined := past.record.tables.get(str(table.name))) is not None
        and joined.state == states[str(table.name)]
        and (position < Lsn.parse(joined.position) or (isinstance(as_of, datetime) and micros(as_of) < joined.at))
    ]
    refused = {str(table.name) for table, _ in joined_later} - context.already_so(joined_later)
    for table in tables:
        where = str(table.name)
        if (joined := past.record.tables.get(where)) is None:
            hint = (
                "if the next run has no other problems, its task `preflight` adds the table to this record. Then "
                "set `as_of` to a time after this task has run"
            )
            what = f"the table is not yet in the record of the standing slot {past.name}"
            yield Problem(where, what, hint, where, passes=True)
        elif joined.state != states[where]:
            yield Problem(
                where,
                f"the table, its schema or the publication was altered since {format_micros(joined.at)}, or a "
                "privilege on the table was granted or revoked",
                "the task `preflight` of the next run adds the table to the standing slot again. Then set `as_of` to "
                "a time after this task has run",
                where,
                passes=True,
            )
        elif where in refused:
            yield Problem(
                where,
                f"the standing slot covers the table only since {joined.position}, {format_micros(joined.at)}: "
                f"{joined.why}",
                f"set `as_of` to {format_micros(joined.at)} or later, or to the LSN {joined.position} or a greater LSN",
                where,
                passes=True,
            )


def _keys(context: PastContext) -> Iterable[Problem]:
    for table in context.planned("watermark"):
        if table.keyless:
            yield Problem(
                str(table.name),
                "lost its key after the task `preflight` ran",
                "clear the task `preflight` and all tasks after it",
            )


PAST: tuple[Check[PastContext], ...] = (
    Check(
        "postgres.past-publication",
        "The standing publication publishes every change to every row and column of the tables.",
        _WHEN,
        "do not alter the standing publication; the next run repairs it",
        _publication,
    ),
    Check(
        "postgres.past-identity",
        "The log since the position has the old rows of all changes.",
        _WHEN,
        "ALTER TABLE … REPLICA IDENTITY FULL",
        _identities,
    ),
    Check(
        "postgres.past-trees",
        "After the position, no partition or child table was added to a table and then removed again.",
        _WHEN,
        "if a run copies this table, leave the option `as_of` empty",
        _trees,
    ),
    Check(
        "postgres.past-record",
        "After the position, no table was altered. The standing slot has kept the log of all tables since the "
        "position.",
        _WHEN,
        "set `as_of` to a later position",
        _record,
    ),
    Check(
        "postgres.past-key",
        "If the plan of a table has the consistency `watermark`, the table still has its key.",
        _WHEN,
        "clear the task `preflight` and all tasks after it",
        _keys,
    ),
)


def check_since_past(
    moment: Moment,
    settings: ConnectionSettings,
    connection: Connection,
    past: Past,
    plans: Sequence[TablePlan],
    position: Lsn,
    as_of: AsOf,
) -> tuple[list[Table], PublicationState]:
    """Check that copies can be exact at ``position``. Return the present tables, each with the part that is copied, and
    the state of the standing slot's publication at the same moment.

    :raises PreflightError: copies cannot be exact at the position. Each problem names the earliest possible position.
    """

    def find(catalog: Catalog) -> tuple[PastContext, list[Problem], PublicationState]:
        found = read_tables(catalog, [plan.table for plan in plans], past.name)
        # No check applies to columns that are left out.
        tables = [replace(table, selection=plan.selection) for plan, table in zip(plans, found, strict=True)]
        # Other runs may add their tables to the publication meanwhile.
        relations = ",".join(str(leaf.oid) for table in tables for leaf in leaves(table))
        state = publications.publication_state(catalog, past.name, relations)
        context = PastContext(catalog, tables=tables, plans=plans, past=past, position=position, as_of=as_of)
        problems = problems_of((*ROWS_ELSEWHERE, *RELATIONS, *PAST), moment, context)
        return context, problems, PublicationState(past.name, state, relations)

    while True:
        context, problems, members = read_catalog(connection, find)
        if not (asked := context.unanswered):
            break
        unchanged = already_so(settings, connection, past.name, asked)
        past.looked_up.update((str(question.table.name), question.table.name in unchanged) for question in asked)
    if problems:
        raise PreflightError(problems)
    return [*context.tables], members
