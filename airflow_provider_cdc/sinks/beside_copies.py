"""Files beside the copies in the lake: certificates, and the changes between copies.

Readers of copies ignore folders whose names begin with ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from airflow_provider_cdc.core.run.commit_record import Feed
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sinks.base import LakeFeed, Publication, TableChange

CERTIFICATES = "_certificates"
DIGEST, DEFINITION = "cdc.digest", "cdc.digest_definition"
"""The properties of a snapshot with the digest of its rows, and with the name of the digest's definition."""


def certificate_location(table: TableName, run_id: str) -> str:
    """Return the place of a certificate, relative to the lake."""
    return f"{folder_name(table)}/{CERTIFICATES}/{run_id}.json"


def write_certificate(lake: Storage, publication: Publication, change: TableChange) -> None:
    """Write the certificate of one table's copy."""
    if change.certificate:
        lake.write_json(certificate_location(change.table, publication.run_id), dict(change.certificate))


def read_certificate(lake: Storage, table: TableName, run_id: str) -> Mapping[str, Any] | None:
    """Return the certificate of the copy that a run published for a table; None: there is none."""
    with suppress(FileNotFoundError):
        data: Mapping[str, Any] = lake.read_json(certificate_location(table, run_id))
        return data
    return None


def remove_certificate(lake: Storage, table: TableName, run_id: str) -> None:
    """Remove the certificate of a copy that is removed."""
    # Ignore a missing file: another run may remove the same copy.
    with suppress(FileNotFoundError):
        lake.delete_file(certificate_location(table, run_id))


def properties_of(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a snapshot that name the digest of its rows; empty: the digest is not known."""
    if not certificate.get("digest"):
        return {}
    return {DIGEST: str(certificate["digest"]), DEFINITION: str(certificate["definition"])}


# Files and records of the changes between copies.
#
# ``<lake>/<schema>.<table>/_changes/<run_id>/part-*`` has the changes between the previous copy and the copy of the run
# ``run_id``. ``_feed.json``, in the same folder, is the record of these changes. The record never changes. Readers of
# copies ignore folders whose names begin with ``_``.
#
# If the changes begin anew at the copy of a run, the run has no changes. Its folder has only the record ``_gap.json``.


FOLDER = "_changes"
RECORD = "_feed.json"
GAP = "_gap.json"
_READERS = 16

_HINT = "restore the file, or start over: load the latest copy in full, then apply the changes after it"


@dataclass(frozen=True)
class _File:
    """The record of a file, with the fields that readers of changes need."""

    name: str
    rows: int


@dataclass(frozen=True)
class _FeedRecord:
    """The fields of ``_feed.json``. ``start`` is the field ``from`` (a keyword in Python), and ``end`` is the field
    ``to``."""

    run_id: str
    from_run_id: str
    rows: int
    first_order: int
    start: str
    end: str
    files: tuple[_File, ...]


@dataclass(frozen=True)
class LakeFeedGap:
    """The fields of ``_gap.json``: no changes were published between the copies of the runs ``from_run_id`` and
    ``run_id``, at the positions ``start`` and ``end`` (the fields ``from`` and ``to``). The next change has the number
    ``first_order``."""

    run_id: str
    from_run_id: str
    first_order: int
    start: str
    end: str
    reason: str


def feed_location(table: TableName, run_id: str) -> str:
    """Return the folder, relative to the lake, with the changes that a run published for a table."""
    return f"{feeds_of(table)}/{run_id}"


def feeds_of(table: TableName) -> str:
    """Return the folder, relative to the lake, with the changes of a table from all runs."""
    return f"{folder_name(table)}/{FOLDER}"


def feed_record(publication: Publication, feed: Feed) -> dict[str, Any]:
    """Return the contents of ``_feed.json`` for a feed."""
    return {
        "run_id": publication.run_id,
        "to": publication.position,
        "from_run_id": feed.base,
        "from": feed.start,
        "rows": feed.rows,
        "first_order": feed.first,
        "files": [file_record(file) for file in feed.files],
    }


def gap_record(publication: Publication, change: TableChange) -> dict[str, Any]:
    """Return the contents of ``_gap.json``; empty: there is no gap before the copy of this table."""
    gap = change.feed_gap
    if gap is None:
        return {}
    return {
        "run_id": publication.run_id,
        "to": publication.position,
        "from_run_id": gap.base,
        "from": gap.start,
        "reason": gap.reason,
        "first_order": gap.first,
    }


def write_record(lake: Storage, publication: Publication, change: TableChange) -> None:
    """Write the record of the changes that lead to a copy, or of the gap before it."""
    folder = feed_location(change.table, publication.run_id)
    if change.feed is not None:
        lake.write_json(f"{folder}/{RECORD}", feed_record(publication, change.feed))
    elif gap := gap_record(publication, change):
        lake.write_json(f"{folder}/{GAP}", gap)


def file_record(file: StagedFile) -> dict[str, Any]:
    """Return the record of a published file, for ``_latest.json`` and ``_feed.json``."""
    return {"name": file.base_name, "rows": file.rows, "bytes": file.bytes, "checksum": file.checksum}


def file_records(change: TableChange) -> tuple[dict[str, Any], ...]:
    """Return the records of all files of a copy, for ``_latest.json``. The files of a merged table name their shard."""
    shard_of = {name: {"shard": shard} for shard, names in change.shards.items() for name in names}
    files = sorted((*change.added, *change.kept), key=lambda file: file.base_name)
    return tuple(file_record(file) | shard_of.get(file.base_name, {}) for file in files)


def read_feed(lake: Storage, table: TableName, run_id: str) -> LakeFeed | None:
    """Return the changes that a run published for a table; None: the run published no changes.

    :raises ManifestError: the record of the changes is damaged.
    """
    folder = feed_location(table, run_id)
    where = lake.uri_of(f"{folder}/{RECORD}")
    try:
        data = lake.read_json(f"{folder}/{RECORD}")
    except FileNotFoundError:
        return None
    one = records.decode(_FeedRecord, _known(_FeedRecord, data), where)
    if one.run_id != run_id or sum(file.rows for file in one.files) != one.rows:
        raise ManifestError(
            "the record in this folder was not written for the changes in this folder", where=where, hint=_HINT
        )
    files = tuple(lake.uri_of(f"{folder}/{file.name}") for file in one.files)
    return LakeFeed(one.run_id, one.end, one.from_run_id, one.start, one.rows, one.first_order, files)


def read_gap(lake: Storage, table: TableName, run_id: str) -> LakeFeedGap | None:
    """Return the gap in a table's changes before the copy of a run; None: the run recorded no gap.

    :raises ManifestError: the record of the gap is damaged.
    """
    name = f"{feed_location(table, run_id)}/{GAP}"
    try:
        data = lake.read_json(name)
    except FileNotFoundError:
        return None
    return records.decode(LakeFeedGap, _known(LakeFeedGap, data), lake.uri_of(name))


def next_order(lake: Storage, table: TableName) -> int:
    """Return a number that is greater than the number of each change of a table in the lake. Damaged records do not
    count."""

    def following(run_id: str) -> int:
        with suppress(ManifestError):
            if (feed := read_feed(lake, table, run_id)) is not None:
                return feed.first_order + feed.rows
        with suppress(ManifestError):
            if (gap := read_gap(lake, table, run_id)) is not None:
                return gap.first_order
        return 1

    # Use threads, because each read waits for the store.
    with ThreadPoolExecutor(_READERS) as readers:
        run_ids = [folder.rpartition("/")[2] for folder in lake.folders(feeds_of(table))]
        return max(readers.map(following, run_ids), default=1)


def remove_gap(lake: Storage, table: TableName, run_id: str) -> None:
    """Remove the record of the gap before a copy that is removed."""
    # Ignore a missing file: most copies have no gap, and another run may remove the same copy.
    with suppress(FileNotFoundError):
        lake.delete_file(f"{feed_location(table, run_id)}/{GAP}")
        lake.delete_empty_folder(feed_location(table, run_id))


def _known(kind: type[Any], data: Any) -> Any:
    """Return a record without the fields that a later version of this package added."""
    if not isinstance(data, dict):
        return data
    feed = _chosen(kind, {**data, "start": data.get("from"), "end": data.get("to")})
    if isinstance(files := feed.get("files"), list):
        feed["files"] = [_chosen(_File, file) if isinstance(file, dict) else file for file in files]
    return feed


def _chosen(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    return {feed_field.name: data[feed_field.name] for feed_field in fields(kind) if feed_field.name in data}
