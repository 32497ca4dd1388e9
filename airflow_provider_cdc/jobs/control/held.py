"""Describes what a paused run still holds on its source, and what that costs."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.source import Source


def held(source: Source, run: Run) -> str:
    """Return, in words, what the run holds on the server while it is paused. It holds no lock, no transaction and no
    exported snapshot."""
    manifest = run.manifest
    size = ""
    with suppress(CdcError, OSError):
        if (backlog := source.backlog(manifest.initial, manifest.identity)) is not None:
            size = f"{backlog / 2**20:,.1f} MiB"
    if slot := manifest.identity.get("slot"):
        cost = f"{size} of log until now, and " if size else "log, and "
        return (
            f"The run holds no lock, transaction or snapshot. On the server, its replication slot {slot} keeps {cost}"
            "dead rows of the system catalogs; both grow until the run ends"
        )
    log = f" ({size} until now)" if size else ""
    return (
        "The run holds nothing on the server. It still needs the log since its initial position"
        f"{log}: resume it before the server removes this log"
    )
