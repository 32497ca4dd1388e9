"""Small files that a process left because it was killed between two calls: probes of a store, and files that were to be
renamed. No process uses them after a day."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from airflow_provider_cdc.cleaning.findings import FILE, Leftover, Removal
from airflow_provider_cdc.cleaning.known_runs import Rules
from airflow_provider_cdc.core.copies.retention import UNTOLD
from airflow_provider_cdc.core.liveness.turns import FOLDER as TURNS
from airflow_provider_cdc.core.storage.durable import shows_growing_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.listing import Entry, entries

_PROBE = re.compile(r"_probe-(?:a-)?[0-9a-f]{32}(?:\.[0-9a-f]{32}\.tmp)?")
_TEMPORARY = re.compile(r"_latest\.json\.[0-9a-f]{32}\.tmp")


def temporary_files(lake: Storage, scratch: Storage, rules: Rules) -> Iterator[Removal]:
    """Yield the temporary files in the folders of the target that are older than a day."""
    for folder in (lake, scratch, scratch.folder(TURNS)):
        yield from _matching(folder, "", _PROBE, rules)
    if not shows_growing_files(lake.filesystem):
        # Object stores show an object when it is complete, so nothing is renamed there.
        return
    for table in lake.folders():
        if not table.startswith("_"):
            yield from _matching(lake, table, _TEMPORARY, rules)


def _matching(folder: Storage, name: str, pattern: re.Pattern[str], rules: Rules) -> Iterator[Removal]:
    for file in entries(folder, name):
        if pattern.fullmatch(file.name.rpartition("/")[2]) and rules.now - file.written >= UNTOLD:
            proof = f"a process that was killed left it: written at {file.written:%Y-%m-%d %H:%M:%S} UTC"
            yield Removal(
                Leftover(FILE, folder.uri_of(file.name), "", file.bytes, proof), partial(_remove, folder, file)
            )


def _remove(folder: Storage, file: Entry) -> str:
    folder.delete_file(file.name)
    return ""
