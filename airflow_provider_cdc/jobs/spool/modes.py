"""Decides whether a run spools its log."""

from __future__ import annotations

from airflow_provider_cdc.core.options.log import OFF
from airflow_provider_cdc.jobs.runtime.step import Step


def why_not(step: Step) -> str:
    """Return why the run does not spool its log, for its log. Empty: it spools."""
    options = step.manifest.options
    read = [entry.table for entry in step.tables if entry.live]
    if options.log.spool == OFF:
        return "the option `spool` is `off`"
    if not read:
        return "no table is read"
    if step.manifest.at_upper:
        return "touched rows are read again, so the run needs only the keys in the log"
    if options.keep_slot:
        return "the slot stays at the run's position for another program (`keep_slot`)"
    if cascading := [str(table.name) for table in read if table.cascades_from]:
        return (
            f"foreign keys change rows of {cascading[0]} without an entry in the log, and it is known only after the "
            "read which of these changes matter"
        )
    return ""
