"""Verifies copies, and records the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, FileDamaged, ManifestError
from airflow_provider_cdc.jobs.runtime.progress import EVERY_SECONDS, log
from airflow_provider_cdc.jobs.verify.against_source import verify_against_source, with_comparison
from airflow_provider_cdc.jobs.verify.compare import Side, compare
from airflow_provider_cdc.jobs.verify.copies import OpenedCopy, open_copy
from airflow_provider_cdc.jobs.verify.files import verify_files
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    FILES,
    MARKDOWN,
    REQUEST,
    RESULT,
    SAME,
    SOURCE,
    CopyAsked,
    TableResult,
    VerifyRequest,
    VerifyResult,
)
from airflow_provider_cdc.jobs.verify.result_text import lines, markdown
from airflow_provider_cdc.jobs.verify.rows import RowsToRead
from airflow_provider_cdc.sources.api.connection import ConnectionSettings


def verify(
    spark: SparkSession, folder: Storage, settings: ConnectionSettings | None, *, with_rows: bool = False
) -> VerifyResult:
    """Do what the request in ``folder`` asks, and write the result there, as JSON and as Markdown.

    :param settings: the connection to the source; None: the request does not concern the source.
    :param with_rows: whether to print the rows that differ. The log of a task must not have them.
    :raises ConfigurationError: the request cannot work.
    """
    started = time.monotonic()
    request = records.read(VerifyRequest, folder, REQUEST)
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    meanwhile = _signs_of_life(started)
    left, right = "source", "copy"
    if request.what == SOURCE:
        if settings is None:
            raise ConfigurationError("no connection to the source is given", where="parameter source_conn_id")
        tables = verify_against_source(spark, request, settings, folder, meanwhile)
    elif request.what == FILES:
        tables = [verify_files(spark, request, asked, meanwhile) for asked in request.copies]
        left, right = "record", "files"
    else:
        pairs = zip(request.copies, request.others, strict=True)
        tables = [_verify_copies(spark, request, *pair, meanwhile) for pair in pairs]
        left, right = "first copy", "second copy"
    result = VerifyResult(request.id, request.what, began_at, tuple(tables), left, right)
    result = replace(result, seconds=round(time.monotonic() - started, 3))
    records.write(folder, RESULT, result)
    folder.write_text(MARKDOWN, markdown(result))
    for line in lines(result, with_rows=with_rows):
        log(line)
    return result


def _verify_copies(
    spark: SparkSession, request: VerifyRequest, one: CopyAsked, other: CopyAsked, meanwhile: Callable[[], None]
) -> TableResult:
    """Compare two copies with each other, in the columns and the types of the first."""
    try:
        left, right = open_copy(request, one), open_copy(request, other)
    except (ManifestError, FileDamaged) as error:
        return TableResult(one.table, DIFFERENT, str(error))
    names = left.schema.names
    # The columns of both copies are named by the columns of the table.
    named = {one.columns.get(name, name): name for name in one.columns}
    schema = pa.schema([field.with_name(named.get(field.name, field.name)) for field in left.schema])
    shown = pa.schema([field for field in schema if other.columns.get(field.name, field.name) in right.schema.names])
    key = one.key or other.key or _key_of(left) or _key_of(right)
    if missing := [name for name in key if name not in shown.names]:
        raise ConfigurationError(
            f"one of the copies has no column for {', '.join(missing)}, which is in the key",
            where=one.table,
            hint=f"map it to a column of each copy; the first copy has the columns {', '.join(names)}",
        )
    reading = RowsToRead(left.label, shown, key, columns=one.columns)
    sides = (
        Side(reading, left.pieces, left.stream),
        Side(replace(reading, label=right.label, columns=other.columns), right.pieces, right.stream),
    )
    ignored = [name for name in schema.names if name not in shown.names]
    ignored += [
        name for name in right.schema.names if name not in {other.columns.get(column, column) for column in shown.names}
    ]
    positions = [copy.position for copy in (left, right)]
    result = TableResult(
        one.table,
        SAME,
        position=positions[0]
        if positions[0] == positions[1]
        else " and ".join(text or "unknown" for text in positions),
        columns_left_out=tuple(ignored),
    )
    return with_comparison(result, lambda: compare(spark, *sides, request.shown, meanwhile))


def _key_of(copy: OpenedCopy) -> tuple[str, ...]:
    return copy.entry.table.published_key if copy.entry is not None else ()


def _signs_of_life(started: float) -> Callable[[], None]:
    """Return a function that prints a line from time to time."""
    last = started

    def tell() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 6 * EVERY_SECONDS:
            last = now
            log(f"verify: comparing, {now - started:,.0f} s so far")

    return tell
