"""Verifies the files of copies: damaged, missing and extra files, and the digest of the rows.

The files are compared with the certificate of the copy. Copies of earlier versions have no certificate, only the list
of their files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.certificate import Certificate, decode_certificate
from airflow_provider_cdc.core.copies.head import Copy, position_of
from airflow_provider_cdc.core.digest.digest import NAME
from airflow_provider_cdc.core.run.commit_record import decision_of, published_run
from airflow_provider_cdc.core.run.run import scratch_of
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.published import files_of_copy
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import FileDamaged, ManifestError
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, CheckFiles
from airflow_provider_cdc.jobs.verify.compare import Side, digest_of
from airflow_provider_cdc.jobs.verify.copies import copy_name, open_copy, sink_of
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    NOT_VERIFIED,
    SAME,
    CopyAsked,
    TableResult,
    VerifyRequest,
)
from airflow_provider_cdc.jobs.verify.rows import RowsToRead
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sinks.beside_copies import read_certificate

_TASKS_PER_SLOT = 4


def verify_files(
    spark: SparkSession, request: VerifyRequest, asked: CopyAsked, meanwhile: Callable[[], None]
) -> TableResult:
    """Compare each file of the latest copy of a table with its record: size, checksum, footer and number of rows. Then
    compare the digest of all rows with the certificate."""
    name, sink = copy_name(asked), sink_of(request)
    head = sink.head(name)
    if head is None:
        return TableResult(asked.table, NOT_VERIFIED, "the table has no copy")
    recorded = read_certificate(Storage(request.target), name, head.run_id)
    certificate = None if recorded is None else decode_certificate(recorded, f"certificate of {asked.table}")
    folder = sink.copy_folder(head.run_id, name)
    try:
        files = _recorded(request, head, name, certificate)
    except ManifestError as error:
        return TableResult(asked.table, NOT_VERIFIED, f"the record of the files is gone: {error}", position_of(head))
    parts = [part for file in files for part in file.parts]
    slots = max(1, int(spark.sparkContext.defaultParallelism))
    tasks = min(len(parts), slots * _TASKS_PER_SLOT)
    checked = [Checked(part, asked.table, folder) for part in sorted(parts, key=lambda part: -part.bytes)]
    orders = [tuple(checked[task::tasks]) for task in range(tasks)]
    outcomes = run_tasks(spark, f"check files: {asked.table}", orders, CheckFiles(folder), meanwhile=meanwhile)
    damaged = [f"{one.file.name}: {what}" for outcome in outcomes for one, what in outcome]
    damaged += [f"{file}: it is not in the record of the copy" for file in _extra(sink, head, name, folder, parts)]
    found = ""
    if certificate is not None and certificate.digest and certificate.definition == NAME:
        found = _digest(spark, request, asked, meanwhile)
        if found and found != certificate.digest:
            damaged.append(f"the digest of the rows is {found}, but the certificate has {certificate.digest}")
    superseded = damaged and _run_id(sink, name) != head.run_id
    return TableResult(
        asked.table,
        NOT_VERIFIED if superseded else DIFFERENT if damaged else SAME,
        _why(damaged, bool(superseded)),
        position_of(head),
        rows=(head.rows, sum(file.live_rows for file in files)),
        digests=(certificate.digest if certificate is not None else "", found),
        damaged=tuple(sorted(damaged)),
        files=len(parts),
    )


def _why(damaged: Sequence[str], superseded: bool) -> str:
    if superseded:
        return "a newer copy was published, and this one may have been removed, while it was read"
    return f"{len(damaged):,} of the files or digests differ from the record" if damaged else ""


def _run_id(sink: Sink, name: TableName) -> str:
    head = sink.head(name)
    return head.run_id if head is not None else ""


def _recorded(
    request: VerifyRequest, head: Copy, name: TableName, certificate: Certificate | None
) -> Sequence[StagedFile]:
    """Return the files of a copy, from its certificate, from the record beside it, or from the record of its run, which
    alone has the files with deletes of an Iceberg table.

    :raises ManifestError: there is no record of the files.
    """
    if head.files:
        if certificate is not None:
            return [StagedFile(one.name, one.rows, one.bytes, one.checksum) for one in certificate.files]
        return [StagedFile(one["name"], one["rows"], one["bytes"], one["checksum"]) for one in head.files]
    scratch = Storage(request.scratch or scratch_of(request.target))
    run = published_run(scratch, head.run_id)
    return files_of_copy(run, decision_of(run), name)


def _extra(sink: Sink, head: Copy, name: TableName, folder: Storage, parts: Sequence[StagedFile]) -> list[str]:
    """Return the files that readers of the copy would read, and that are not in its record."""
    known = {part.base_name for part in parts}
    if head.files:
        present = {file for file in folder.files() if not file.startswith(("_", "."))}
    else:
        latest = sink.latest(name)
        present = {uri.rpartition("/")[2] for uri in latest.files} if latest is not None else set()
    return sorted(present - known)


def _digest(spark: SparkSession, request: VerifyRequest, asked: CopyAsked, meanwhile: Callable[[], None]) -> str:
    """Return the digest of the rows of a copy; empty: they cannot be read, because files are damaged."""
    with suppress(FileDamaged, ManifestError):
        copy = open_copy(request, asked)
        side = Side(RowsToRead(copy.label, copy.schema, ()), copy.pieces, copy.stream)
        return digest_of(spark, side, meanwhile).hex
    return ""
