"""Recognizes the table that was altered, and decides whether the run may read it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from airflow_provider_cdc.core.copies.plan_checks import feeds_gapless
from airflow_provider_cdc.core.options.run import CHANGES, FAIL, GIVE_UP_PAST, StepOptions
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.errors import CdcError, SchemaChanged
from airflow_provider_cdc.jobs.log.log import logs_of
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step

LIMIT = 10
"""The greatest number of restarts of one run. A run whose tables are altered all the time would never end."""


def may_restart(step: Step) -> bool:
    """Return whether the run may move its position, and read altered tables again.

    A position that a user requested (``as_of``) never moves.
    """
    manifest = step.manifest
    option = manifest.options.on_schema_change
    movable = not manifest.options.as_of or (option == GIVE_UP_PAST and manifest.may_miss_past)
    return option != FAIL and movable and len(manifest.restarts) < LIMIT


def may_leave_out(step: Step) -> bool:
    """Return whether the run leaves altered tables out that it may not read again."""
    return step.manifest.options.on_schema_change != FAIL and step.manifest.options.skips


def must_be_rolled(options: StepOptions) -> bool:
    """Return whether a copy that the run rolls forward must not be read again instead."""
    return feeds_gapless(options) or options.refresh == CHANGES


def altered_table(step: Step, error: CdcError) -> str | None:
    """Return the table of the run that was altered, according to ``error``. None: the error names no such table, or the
    run may neither read the table again nor leave it out.

    A table that must be rolled forward (``refresh`` = ``changes``) is never read again. If row changes must be
    published without a gap, the same is true for all tables that are rolled forward.
    """
    if not isinstance(error, SchemaChanged) or not (may_restart(step) or may_leave_out(step)):
        return None
    rolls = must_be_rolled(step.manifest.options)
    names = [str(entry.table.name) for entry in step.tables if not (entry.left_out or (rolls and entry.base))]
    return named(error, names)


def named(error: CdcError, names: Iterable[str]) -> str | None:
    """Return the table that an error names; None: it names none of the tables."""
    fitting = [name for name in names if _names(error.where, name)]
    # The name of a table may contain the separators, so the longest name is meant.
    return max(fitting, key=len, default=None)


def _names(where: str, name: str) -> bool:
    return where == name or any(where.startswith(f"{name}{mark}") for mark in (" at ", ", ", "."))


def note_altered(step: Step, error: CdcError) -> bool:
    """Note in ``step.altered`` the tables that were altered while the step read tables. Return whether ``error`` is
    explained by this: the reads of the other tables go on.

    :param error: the error that stopped the reads.
    """
    if not (may_restart(step) or may_leave_out(step)):
        return False
    noted = len(step.altered)
    name = altered_table(step, error)
    if name is not None and isinstance(error, SchemaChanged):
        step.altered.setdefault(name, described(error))
    step.altered |= look_for_altered(step, [entry for entry in step.tables if entry.is_read or entry.at_upper])
    return len(step.altered) > noted


def look_for_altered(step: Step, entries: Sequence[RunTable]) -> dict[str, str]:
    """Return those of the tables whose definitions differ now, by name, each with the difference. Tables in
    ``step.altered`` are not looked at."""
    altered: dict[str, str] = {}
    unaltered = [entry for entry in entries if str(entry.table.name) not in step.altered]
    for one in logs_of(step, unaltered, refresh=True):
        while True:
            tables = [table for table in one.tables if str(table.name) not in altered]
            try:
                retry("check the tables", partial(one.source.check_tables, tables))
                break
            except SchemaChanged as error:
                name = altered_table(step, error)
                if name is None or name in altered or name not in {str(table.name) for table in tables}:
                    raise
                altered[name] = described(error)
    return altered


def described(error: SchemaChanged) -> str:
    """Describe a change in one line: what changed, and where the log shows it."""
    return f"{error.message} ({error.where})" if " at " in error.where else error.message
