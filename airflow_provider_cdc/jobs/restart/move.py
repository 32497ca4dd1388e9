"""Moves a run to a later position, after tables were altered.

The altered tables are read again from the new position X. Finished reads of other tables still count. They began at an
earlier position L and ended before X. The row of a key at X is the row after the last change of this key in (L, X]. If
there is no such change, it is the row that was read. So the other tables are only rolled forward by the log. See
``docs/design/restarts.md`` for the proof.

The entry `Moved` makes the earlier manifest void (`core.run.ledger`), so neither a slow attempt nor a part of a table
from before the change can be published.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from airflow_provider_cdc.core.run.manifest import (
    Basis,
)
from airflow_provider_cdc.core.run.results import Nulled
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.shards.copy_tables import skip_whole_merged_tables
from airflow_provider_cdc.errors import (
    CdcError,
    PreflightError,
    SchemaChanged,
)
from airflow_provider_cdc.jobs.reads import ReadFiles, write_record
from airflow_provider_cdc.jobs.restart.altered import altered_in_log, altered_tables
from airflow_provider_cdc.jobs.restart.later_position import LogOfReadsGone, Move
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool import end_spool
from airflow_provider_cdc.sources.api.window import UpperBound


def restart_run(
    step: Step,
    altered: Mapping[str, str],
    read: Mapping[str, ReadFiles],
    bound: UpperBound | None,
    nulled: Nulled,
) -> RunRestarted:
    """Move the run of ``step``, and return the exception that ends the work under the old manifest.

    :param altered: the tables to read again, by name, each with the reason.
    :param read: the files of the tables that were read in full under the old manifest. They include altered tables.
    :param bound: the bound of these reads; None: ``read`` is empty.
    :param nulled: the number of values that these reads turned into null.
    :raises SchemaChanged: an altered table can no longer be copied, or no longer exists.
    :raises PreflightError: an altered table can no longer be copied.
    """
    run, altered = step.run, dict(altered)
    end_spool(step)
    if _overtaken(run):
        return RunRestarted()
    altered |= altered_in_log(step, altered, read)
    for name, why in altered.items():
        log(f"WARNING: the run moves to a later position, because of {name}: {why}")
    # No position is the one from which all rows of a table with units could be brought forward.
    read = {name: table_files for name, table_files in read.items() if not table_files.units}
    bases = {str(entry.table.name): entry.basis for entry in step.tables if entry.basis is not None}
    if bound is not None and read:
        record = write_record(run, read)
        bases |= {
            name: Basis(record, files.ended or str(bound.log_end), bound.incarnation, nulled.get(name, {}))
            for name, files in read.items()
        }
    move = Move(step, altered, bases, read, bound)
    while True:
        try:
            manifest, pieces = move.attempt()
            break
        except LogOfReadsGone as gone:
            # Read these tables again, too, at another position, because they are not part of this one.
            why = f"the source no longer has the log since it was read ({gone})"
            move.lost |= dict.fromkeys(gone.tables, why)
            log(f"{', '.join(gone.tables)}: read again, too, because {why}")
        except (SchemaChanged, PreflightError) as error:
            found = altered_tables(step, error)
            left = [entry for entry in step.tables if not entry.left_out and str(entry.table.name) not in move.skipped]
            if later := {name: why for name, why in found.items() if name not in altered}:
                # The tables were altered after the reads.
                altered |= later
            elif found and step.manifest.options.skips and not found.keys() & move.skipped.keys() and len(left) > 1:
                move.skipped = skip_whole_merged_tables(step.tables, {**move.skipped, **found})
                if all(str(entry.table.name) in move.skipped for entry in left):
                    raise
                for name, why in found.items():
                    log(f"WARNING: {name} is SKIPPED and will not be published: {why}")
            else:
                raise
    if not run.move(manifest, pieces):
        # A concurrent attempt has moved the run, has finished a step without this manifest, or has recorded a piece of
        # the log that may reach beyond the new position.
        with suppress(CdcError):
            step.source.discard(manifest.identity)
    return RunRestarted()


def _overtaken(run: Run) -> bool:
    """Read the state of the run, with all pieces of the log. Return whether a concurrent attempt has finished a step
    under the present manifest meanwhile, has published the run, or has ended it. If it has finished a step, its reads
    had ended before the table was altered, or before this attempt saw the change. The run goes on with them: a new
    manifest would take them away from the attempt of the next step, which could not go on.

    :raises RunRestarted: a concurrent attempt has moved the run.
    """
    finished = {*run.steps}
    run.refresh()
    return bool(run.steps.keys() - finished) or run.committed or run.ended
