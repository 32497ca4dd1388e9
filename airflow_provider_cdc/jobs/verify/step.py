"""Verifies copies, and records the result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration, format_count
from airflow_provider_cdc.errors import ConfigurationError, FileDamaged, ManifestError
from airflow_provider_cdc.jobs.runtime.progress import EVERY_SECONDS, log, table
from airflow_provider_cdc.jobs.verify.against_source import verify_against_source, with_comparison
from airflow_provider_cdc.jobs.verify.compare import Side, compare
from airflow_provider_cdc.jobs.verify.copies import OpenedCopy, open_copy
from airflow_provider_cdc.jobs.verify.files import verify_files
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    FILES,
    MARKDOWN,
    NOT_VERIFIED,
    REQUEST,
    RESULT,
    SAME,
    SOURCE,
    CopyAsked,
    Difference,
    TableResult,
    VerifyRequest,
    VerifyResult,
)
from airflow_provider_cdc.jobs.verify.rows import RowsToRead
from airflow_provider_cdc.sources.api.source import ConnectionSettings

# The result of a verification in words: the lines of the log, and Markdown.


_SHOWN_IN_LOG = 5
_TITLES = {
    "source": "Copies compared with the source",
    "files": "Files compared with their records",
    "copies": "Copies compared with each other",
}


def lines(result: VerifyResult, *, with_rows: bool) -> Iterator[str]:
    """Yield the lines for the log: a table, the first differences, and the conclusion.

    :param with_rows: whether to show the rows that differ. Otherwise, only their keys are shown.
    """
    rows = [(one.table, one.outcome, one.rows[1], _scope(result, one), one.keys_left_out) for one in result.tables]
    yield table(("table", "outcome", "rows", "compared", "keys not verified"), rows)
    for one in result.tables:
        if one.why:
            yield f"verify: {one.table}: {one.outcome}: {one.why}"
        for text in one.damaged[:_SHOWN_IN_LOG]:
            yield f"  {text}"
        # The key of a table without a key is the whole row.
        shown = [difference for difference in one.differences if with_rows or not _is_whole_row(difference)]
        for difference in shown[:_SHOWN_IN_LOG]:
            yield from _shown(result, difference, with_rows=with_rows)
        if one.confidence:
            yield f"verify: {one.table}: {one.confidence}"
        if one.columns_left_out:
            yield f"verify: {one.table}: columns not compared: {', '.join(one.columns_left_out)}"
    yield f"verify: {conclusion(result)}"


def conclusion(result: VerifyResult) -> str:
    """Return the result in one sentence."""
    counts = [
        (len(result.of(outcome)), words)
        for outcome, words in ((DIFFERENT, "with differences"), (NOT_VERIFIED, "not verified"))
    ]
    faults = [f"{count:,} {words}" for count, words in counts if count]
    return (
        f"{format_count(len(result.tables), 'table')}: {', '.join(faults) or 'no difference'} "
        f"({duration(result.seconds)})"
    )


def markdown(result: VerifyResult) -> str:
    """Return the result as a Markdown page."""
    parts = [
        f"# {_TITLES[result.what]}",
        "",
        f"Verification {result.id}, {result.began_at}: {conclusion(result)}.",
        "",
        f"| table | outcome | rows ({result.left}) | rows ({result.right}) | compared | keys not verified | position |",
        "| --- | --- | ---: | ---: | --- | ---: | --- |",
    ]
    for one in result.tables:
        cells = [
            one.table,
            one.outcome,
            f"{one.rows[0]:,}",
            f"{one.rows[1]:,}",
            _scope(result, one),
            f"{one.keys_left_out:,}",
            one.position,
        ]
        parts.append(f"| {' | '.join(map(_cell, cells))} |")
    for one in result.tables:
        parts += _section(result, one)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)) + "\n"


def _section(result: VerifyResult, one: TableResult) -> list[str]:
    parts = ["", f"## {one.table}", ""]
    if one.why:
        parts += [f"{one.outcome.capitalize()}: {_cell(one.why)}", ""]
    if one.digests[0]:
        parts += [f"Digest of the rows ({result.left}): `{one.digests[0]}`; ({result.right}): `{one.digests[1]}`.", ""]
    if one.confidence:
        parts += [f"Sample: {one.confidence}.", ""]
    if one.keys_left_out:
        parts += [f"Not verified: {format_count(one.keys_left_out, 'key')} that changed meanwhile.", ""]
    if one.columns_left_out:
        parts += [f"Columns that were not compared: {', '.join(one.columns_left_out)}.", ""]
    parts += [f"- {_cell(text)}" for text in one.damaged]
    if one.differences:
        parts += [f"| kind | key | {result.left} | {result.right} |", "| --- | --- | --- | --- |"]
        for difference in one.differences:
            sides = [_rows(difference, side) for side in (0, 1)]
            parts.append(f"| {difference.kind} | {_cell(_pairs(difference.key))} | {' | '.join(map(_cell, sides))} |")
    return parts


def _scope(result: VerifyResult, one: TableResult) -> str:
    if one.outcome == NOT_VERIFIED:
        return "nothing"
    if result.what == FILES:
        return format_count(one.files, "file")
    drawn, total = one.ranges
    return f"{drawn:,} of {total:,} ranges" if total else "all rows"


def _shown(result: VerifyResult, difference: Difference, *, with_rows: bool) -> Iterator[str]:
    yield f"  {difference.kind}: {_pairs(difference.key)}"
    for side, label in enumerate((result.left, result.right)) if with_rows else ():
        yield f"    {label}: {_rows(difference, side)}"


def _is_whole_row(difference: Difference) -> bool:
    return all(difference.key.keys() == row.keys() for row in (*difference.left, *difference.right))


def _rows(difference: Difference, side: int) -> str:
    """Return the rows of one side. If both sides have one row, return only the columns that differ."""
    rows, count = (difference.left, difference.right)[side], difference.counts[side]
    if not count:
        return "no row"
    row = {name: value for name, value in rows[0].items() if not difference.columns or name in difference.columns}
    return _pairs(row) + (f" ({format_count(count, 'row')})" if count > 1 else "")


def _pairs(row: dict[str, str | None]) -> str:
    return ", ".join(f"{name} = {'NULL' if value is None else value}" for name, value in row.items())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


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

    def log_progress() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 6 * EVERY_SECONDS:
            last = now
            log(f"verify: comparing, {now - started:,.0f} s so far")

    return log_progress
