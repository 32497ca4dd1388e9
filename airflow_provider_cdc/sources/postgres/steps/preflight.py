"""Checks everything that a run needs before it begins: all problems at once, each with its hint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.planning.request_checks import request_problems
from airflow_provider_cdc.sources.postgres.catalog import users_code
from airflow_provider_cdc.sources.postgres.catalog.inheritance import inheritance_problems
from airflow_provider_cdc.sources.postgres.catalog.named_tables import resolve
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import followed
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves, read_tables
from airflow_provider_cdc.sources.postgres.catalog.types import leaving_out, unmapped
from airflow_provider_cdc.sources.postgres.catalog.uncopyable_relations import relation_problems
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.server.blockers import naming_blockers
from airflow_provider_cdc.sources.postgres.server.platform import change_setting, platform
from airflow_provider_cdc.sources.postgres.server.privileges import Privileges
from airflow_provider_cdc.sources.postgres.server.server import setting_problems
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote, session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.given_publication import publication_problems, warn_of_harm
from airflow_provider_cdc.sources.postgres.steps.snapshot import identity_problem, needs_log
from airflow_provider_cdc.sources.postgres.steps.warnings import BYTES_PER_SECOND, advise


def preflight(
    settings: ConnectionSettings, patterns: Sequence[str], options: TableOptions, parts: Parts = whole_tables
) -> list[TablePlan]:
    """Check everything that a run needs, and decide how each table is read.

    :param patterns: ``schema.table``; ``*`` matches any run of characters in either part, and a pattern
        that begins with ``!`` leaves out what those before it named (``!shop._*_gho``).
    :param options: consistency ``auto`` reads tables with a key by ``watermark``, and the others with ``exported``. If
        the log lacks what a row of any table was before, no table can be rewound: then all go by ``again``, the ones
        without a key that the log has by ``exported``, and the copy is exact where the reads end.
    :param parts: the part of each table that is copied: columns that are not read need neither a type that can be
        copied nor a privilege.
    :raises PreflightError: with every problem found.
    :raises LockNotGranted: a session keeps a table locked against readers.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the connection cannot work, or the server is too old.
    """
    publication = settings.options.get("publication", "")
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        privileges = Privileges(connection)
        names, unresolved = resolve(connection, patterns)
        concerned += names
        problems = [*request_problems("postgres", patterns, options), *unresolved]
        missing = privileges.server_problems(settings, publishing=not publication)
        problems += [*setting_problems(connection), *missing]
        tables = [
            replace(table, options=options, selection=parts(table.name)) for table in read_tables(connection, names)
        ]
        why = _why_again(connection, tables, options)
        if why:
            by_keys = options.consistency != "exported"
            told = [by_keys and known for known in followed(connection, tables, publication)]
            plans = _plans_again(tables, told, options, why)
        else:
            plans = [_plan(table, options) for table in tables]
        logged = [table for table, plan in zip(tables, plans, strict=True) if needs_log(plan)]
        missing += privileges.table_problems(logged, publishing=not publication)
        missing += privileges.table_problems([one for one in tables if one not in logged], publishing=False)
        problems += [one for one in missing if one not in problems]
        problems += users_code.unplannable(connection, tables)
        problems += inheritance_problems(connection, tables)
        problems += _table_problems(connection, tables, plans)
        if publication:
            problems += publication_problems(connection, publication, logged, keys_only=bool(why))
            warn_of_harm(connection, publication, logged)
        else:
            problems += _lock_problems(connection, logged)
            if not missing:
                problems += users_code.publication_refused(connection, logged)
        exported = bool(why) or any(plan.consistency == "exported" for plan in plans)
        problems += _room_problems(connection, exported=exported, again=bool(why))
        advise(connection, tables)
    if problems:
        raise PreflightError(problems)
    return plans


def check_server(settings: ConnectionSettings) -> list[Problem]:
    """`ChecksServer.check_server`."""
    publishing = not settings.options.get("publication", "")
    with session(settings) as connection:
        missing = Privileges(connection).server_problems(settings, publishing=publishing)
        return [*setting_problems(connection), *missing, *_room_problems(connection, exported=False, again=False)]


def _why_again(connection: Connection, tables: Sequence[Table], options: TableOptions) -> str:
    """Why tables are read again, and not rewound; empty if they are rewound."""
    if options.consistency == "again":
        return "again was asked for"
    views = [table.name for table in tables if table.details["kind"] in (VIEW, MATERIALIZED)]
    if views and options.consistency != "watermark":
        return f"{views[0]} is a view, which is exact only at the position where it is read"
    if options.consistency != "auto":
        return ""
    lacking = [(table.name, found[0]) for table in tables if (found := list(_rewind_problems(connection, table)))]
    if not lacking:
        return ""
    name, problem = lacking[0]
    others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    column = problem.where.removeprefix(f"{name}.")
    why = f"{column} {problem.what}" if column != problem.where else "its replica identity is not FULL"
    return f"the log does not tell what rows of {name}{others} were before ({why})"


def _plans_again(tables: Sequence[Table], told: Sequence[bool], options: TableOptions, why: str) -> list[TablePlan]:
    plans = []
    for table, is_told in zip(tables, told, strict=True):
        if is_told:
            chosen = "again"
            key = f"{table.key_index} ({', '.join(table.key)})"
            reason = f"{why}: its rows are found again by its key {key}, and the copy is exact where the reads end"
        else:
            chosen = "exported"
            lasts = f"about {math.ceil(table.bytes / BYTES_PER_SECOND):,} s"
            if table.details["kind"] == VIEW:
                lasts = "as long as its query takes"
            reason = (
                f"{_why_whole(table, options)}, so all of it is read in one snapshot, which stays open for {lasts} "
                f"({why})"
            )
        plans.append(
            TablePlan(table.name, chosen, reason, table.rows, table.bytes, options.unrepresentable, at_upper=True)
        )
    return plans


def _why_whole(table: Table, options: TableOptions) -> str:
    if table.details["kind"] in (VIEW, MATERIALIZED):
        return "it is a view, of which the log does not tell"
    return "exported was asked for" if options.consistency == "exported" else "the log tells no key of its changed rows"


def _plan(table: Table, options: TableOptions) -> TablePlan:
    if options.consistency == "exported":
        chosen, reason = "exported", "exported was asked for: all of it is read in one snapshot, at one position"
    elif table.keyless and options.consistency != "watermark":
        chosen = "exported"
        reason = "no key tells its rows apart, so it is read in one snapshot, at one position"
    else:
        chosen = "watermark"
        key = f"{table.key_index} ({', '.join(table.key)})"
        reason = f"its key {key} tells what changed while it was read, so it needs no long transaction"
    return TablePlan(table.name, chosen, reason, table.rows, table.bytes, options.unrepresentable)


def _table_problems(connection: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]) -> Iterable[Problem]:
    for table, plan in zip(tables, plans, strict=True):
        where = str(table.name)
        if not table.columns:
            yield Problem(
                where, "has no columns: there is nothing to copy but how many rows it has", "leave it out", where
            )
            continue
        if table.keyless and plan.consistency == "watermark" and table.details["kind"] not in (VIEW, MATERIALIZED):
            yield Problem(
                where,
                "watermark needs a primary key, or a unique index of whole NOT NULL columns that is not deferrable, "
                "and there is none",
                f"ALTER TABLE {quote(table.name.schema, table.name.name)} ADD PRIMARY KEY (…), "
                "or choose auto or exported",
                where,
            )
        if not plan.at_upper:
            yield from _rewind_problems(connection, table)
        for column in table.as_read.columns:
            if (reason := unmapped(column)) is not None:
                yield Problem(
                    f"{where}.{column.name}",
                    reason,
                    f"{leaving_out(table, column.name)}change the column's type, or leave the table out",
                    where,
                )
        yield from relation_problems(connection, table)


def _rewind_problems(connection: Connection, table: Table) -> Iterable[Problem]:
    """Why a table cannot be rewound: what its rows were before is not in the log."""
    if (problem := identity_problem(table)) is not None:
        yield problem
    where = str(table.name)
    since_18 = connection.info.server_version >= 180_000
    read = {column.name for column in table.as_read.columns}
    for column in table.columns:
        generated = column.details.get("generated")
        # A virtual column makes the server refuse the application's UPDATE, whether the column is read or not.
        if generated == "virtual" or (generated and not since_18 and column.name in read):
            why = "virtual ones are in no log" if since_18 else "the log has them only since PostgreSQL 18"
            yield Problem(
                f"{where}.{column.name}",
                f"is a generated column, and {why}",
                f"{leaving_out(table, column.name) if generated == 'stored' else ''}drop it, leave the table out, or "
                "choose consistency auto or again",
                where,
            )


def _room_problems(connection: Connection, *, exported: bool, again: bool) -> Iterable[Problem]:
    """Slots and senders that a run needs and that others have taken.

    Beside its slot a run has a temporary one: for the view that all tasks share, and later to read the log from. It has
    both at once if rows are read ``again``.
    """
    for setting, why, needed in (
        ("max_replication_slots", "replication slots", 3 if again else 2),
        ("max_wal_senders", "replication connections", 2 if exported else 1),
    ):
        limit, used = slots.room(connection, setting, needed)
        if limit - used < needed:
            yield Problem(
                setting,
                f"is {limit}, of which {used} are in use: a run of these tables needs {needed} {why}",
                change_setting(platform(connection), setting, str(used + max(needed, 4)))
                + "; or drop slots that nobody needs",
            )


def _lock_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """Whether the server could drop the run's publication again: that takes a lock for each relation in it, at once."""
    ((room, each),) = query(
        connection,
        "SELECT current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int "
        "+ current_setting('max_prepared_transactions')::int), current_setting('max_locks_per_transaction')::int8",
    )
    count = sum(len(leaves(table)) for table in tables)
    # The other half is for everybody else.
    if 2 * count > room:
        yield Problem(
            "max_locks_per_transaction",
            f"is {each}: the server has room for about {room} locks, and the tables have {count} partitions, each of "
            "which needs one when their publication is dropped",
            change_setting(platform(connection), "max_locks_per_transaction", str(-(-each * 2 * count // room)))
            + "; or copy fewer of the tables at once, or name a publication in the connection",
        )
