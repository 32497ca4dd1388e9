"""The result of a verification in words: the lines of the log, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_provider_cdc.counted import duration, format_count
from airflow_provider_cdc.jobs.runtime.progress import table
from airflow_provider_cdc.jobs.verify.request import (
    DIFFERENT,
    FILES,
    NOT_VERIFIED,
    Difference,
    TableResult,
    VerifyResult,
)

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
        told = [difference for difference in one.differences if with_rows or not _is_whole_row(difference)]
        for difference in told[:_SHOWN_IN_LOG]:
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
