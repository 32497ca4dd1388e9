"""Drops the slots and publications of earlier manifests of the run.

On PostgreSQL, each manifest has its own slot and publication. After a move, the slot of the old manifest is advanced to
the new position, or dropped if no read of this manifest counts. Otherwise the server would keep log for it until the
end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_cdc.core.run.manifest import EarlierReads, Manifest
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool.kept_pieces import acknowledge


def discard_unused(step: Step, made: Sequence[Manifest | EarlierReads], present: Manifest) -> None:
    """Drop the slots and publications that were ``made`` and that the ``present`` manifest does not use."""
    used = [present.identity, *(reads.identity for reads in present.earlier_reads.values())]
    for one in made:
        if one.identity not in used:
            with suppress(CdcError):
                step.source.discard(one.identity)


def finish_move(step: Step) -> None:
    """Drop what earlier manifests have left. The attempt that moved the run may have been killed before it did so."""
    if step.manifest.restarts:
        acknowledge(step, step.manifest)
        # If this fails, the end of the run drops them.
        with suppress(CdcError):
            discard_unused(step, step.run.earlier_manifests(), step.manifest)
