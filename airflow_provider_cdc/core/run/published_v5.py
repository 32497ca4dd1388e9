"""Runs that format 5 published. Their copies remain bases and feeds.

Format 5 had no ledger. The first manifest was ``manifest.json``. If a run moved or began anew, it wrote a further
manifest with a number; the last one counted. The results of the steps and the commit were in a folder that was named
after this manifest. These records are only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.core.run.ledger import FilesCommitted, State
from airflow_provider_cdc.core.run.manifest import FORMAT, Manifest
from airflow_provider_cdc.core.run.results import CONSOLIDATE, RESULTS, SNAPSHOT, SnapshotResult, StepResult
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ManifestError

FILE = "manifest.json"
"""The first manifest of a run. A folder without it has no run of format 5."""

_FORMAT = 5
_NAMES = re.compile(r"manifest(?:-([0-9]+))?\.json")
_COMMIT = "commit"


def manifests(folder: Storage) -> list[str]:
    """Return the names of the manifests of a run of format 5 or earlier, in their order."""
    numbers = {int(match[1] or 1): name for name in folder.files() if (match := _NAMES.fullmatch(name))}
    return [numbers[number] for number in sorted(numbers)]


def read_published(folder: Storage) -> State | None:
    """Return the state of a run that format 5 published. None: there is no run of format 5 or earlier.

    :raises ManifestError: the run was not published, it has an earlier format, or a record is damaged.
    """
    if not folder.exists(FILE):
        return None
    names = manifests(folder) or [FILE]
    found = [records.read_data(folder, name) for name in names]
    if any(not isinstance(data, dict) or data.get("format") != _FORMAT for data in found):
        raise _refused(folder, found[-1])
    digest = records.digest_of(found[-1])
    place = f"steps/{digest[:16]}"
    present = {name for name in folder.files(place) if name.endswith(".json")}
    data = {name.rpartition("/")[2].removesuffix(".json"): records.read_data(folder, name) for name in present}
    if CONSOLIDATE not in data:
        raise _refused(folder, found[-1])
    _check_grounds(folder, place, {"manifest": digest}, data)
    *earlier, manifest = [
        records.decode(Manifest, converted(one), folder.uri_of(name)) for name, one in zip(names, found, strict=True)
    ]
    steps: dict[str, StepResult] = {
        task_id: records.decode(kind, data[task_id].get("found"), folder.uri_of(f"{place}/{task_id}.json"))
        for task_id, kind in RESULTS.items()
        if task_id in data
    }
    position = manifest.initial_position
    if manifest.at_upper and isinstance(read := steps.get(SNAPSHOT), SnapshotResult):
        position = read.snapshot_upper
    commit = data.get(_COMMIT) or {}
    return State(
        digest=digest,
        manifest=manifest,
        earlier=tuple(earlier),
        steps=steps,
        position=position,
        commit=FilesCommitted(str(commit.get("record", "")), str(commit.get("token", ""))),
    )


def converted(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of format 5 with the names of this version. How the tables were read during the run no longer
    matters."""
    tables = [{name: value for name, value in entry.items() if name != "read_in"} for entry in manifest["tables"]]
    return {name: value for name, value in manifest.items() if name != "earlier_reads"} | {"tables": tables}


def _check_grounds(folder: Storage, place: str, digests: dict[str, str], data: dict[str, Any]) -> None:
    """Check that no record was replaced after another record was made from it."""
    if strange := data.keys() - RESULTS.keys() - {_COMMIT}:
        raise ManifestError(
            f"the run has a record of an unknown step: {min(strange)}", where=folder.uri_of(place), hint=records.HINT
        )
    digests = digests | {name: records.digest_of(record) for name, record in data.items()}
    for name, record in data.items():
        grounds = record.get("rests_on") if isinstance(record, dict) else None
        for ground, digest in grounds.items() if isinstance(grounds, dict) else [("manifest", "")]:
            if digests.get(ground) != digest:
                raise ManifestError(
                    f"the record {name} of this run depends on an earlier version of the record {ground}, which was "
                    "replaced",
                    where=folder.uri_of(f"{place}/{name}.json"),
                    hint=records.HINT,
                )


def _refused(folder: Storage, manifest: Any) -> ManifestError:
    found = manifest.get("format") if isinstance(manifest, dict) else None
    return ManifestError(
        f"the manifest has format {found!r}; this version reads {FORMAT}",
        where=folder.uri,
        hint=records.OTHER_VERSION,
    )
