"""The tables whose finished reads are kept when the run moves: what the log and the server tell about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.jobs.restart.altered import described, must_be_rolled
from airflow_provider_cdc.jobs.restart.sources_of_reads import ReadsOfManifest, by_manifest
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.jobs.runtime.step import Step


def altered_in_log(step: Step, altered: Mapping[str, str], read: Collection[str]) -> dict[str, str]:
    """Return the tables that are not in ``altered``, and that a statement in the log has changed, each with the
    statement. So the run moves once for all of them, and not once for each statement that only the log shows.

    :param read: the tables that were read in full under the present manifest.
    """
    rolls = must_be_rolled(step.manifest.options)
    unaltered = [entry for entry in step.tables if str(entry.table.name) not in altered]
    kept = [entry for entry in unaltered if str(entry.table.name) in read or entry.read_in]
    groups = [(one.identity, one.position, one.entries) for one in by_manifest(step, kept)]
    if rolled := tuple(entry for entry in unaltered if entry.base and not rolls):
        # The pieces of the log that the run has recorded do not have these tables.
        groups.append((step.manifest.identity, step.manifest.initial_position, rolled))
    found: dict[str, str] = {}
    for identity, position, entries in groups:
        # The source of this step does not know the pieces that were recorded since the step began.
        source = step.source.of_run(identity, parse_position(step.manifest.kind, position))
        tables = [entry.table for entry in entries]
        try:
            errors = persist("search the log for altered tables", partial(source.altered_in_log, tables))
        except LogGone:
            # The run finds this again when it brings the reads to the later position.
            continue
        found |= {str(name): described(error) for name, error in errors.items()}
    return found


def renewed(kept: ReadsOfManifest) -> Sequence[Table]:
    """Return the tables of ``kept`` with the facts that the next run compares with the tables. Call this before the
    later position is fixed, so that an unlogged change after the position differs from these facts.

    :raises SchemaChanged: a table was changed without an entry in the log since it was read.
    :raises LogGone: the source no longer has the log since it was read.
    """
    tables = [entry.table for entry in kept.entries]
    return persist("check the tables that are kept", partial(kept.source.renewed, tables))
