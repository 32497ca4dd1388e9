"""Certificates of copies, in the lake: ``<lake>/<schema>.<table>/_certificates/<run_id>.json``.

Readers ignore folders whose names begin with ``_``. The folder of a copy has only data files, because some programs
load every file of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.sinks.base import Publication, TableChange

FOLDER = "_certificates"
DIGEST, DEFINITION = "cdc.digest", "cdc.digest_definition"
"""The properties of a snapshot with the digest of its rows, and with the name of the digest's definition."""


def certificate_location(table: TableName, run_id: str) -> str:
    """Return the place of a certificate, relative to the lake."""
    return f"{folder_name(table)}/{FOLDER}/{run_id}.json"


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
