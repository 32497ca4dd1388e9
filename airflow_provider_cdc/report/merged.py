"""The report of the task that publishes merged tables of several sources."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_cdc.core.shards.union import Member, Union, UnionResult
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.report.facts import DagRunName, Report, Section
from airflow_provider_cdc.report.page import HTML, write_pages


def write_union(folder: Storage, union: Union, result: UnionResult, dag_run: DagRunName) -> str:
    """Write the report of a published union into its folder. Return the URI of the report.

    :raises CdcError: the report could not be written to the store.
    """
    tables = Section("Tables", ("table", "rows", "exact at", "copy"), tuple(_tables(union, result)))
    sections = [_union(folder, union, result, dag_run), _sources(union), tables]
    if result.skipped:
        why = tuple(sorted(result.skipped.items()))
        note = "The folders of these tables keep the earlier copies."
        sections.append(Section("Left out", ("table", "reason"), why, note))
    if result.removed:
        sections.append(Section("Removed copies", ("copy",), tuple((uri,) for uri in result.removed)))
    what = format_count(len(result.published), "merged table")
    return write_pages(folder, Report(f"{what} of {format_count(len(union.members), 'source')}", tuple(sections)))


def write_union_failure(folder: Storage, runs: dict[str, str], dag_run: DagRunName, error: Exception) -> str:
    """Write the report of a try that failed with ``error``. A later report replaces it. Return the URI of the page.

    :param runs: the URIs of the folders of the runs, by source.
    :raises CdcError: the report could not be written to the store.
    """
    message, _, hint = str(error).partition("\n  Hint: ")
    why = (
        ("error", type(error).__name__),
        ("what", message),
        *((("hint", hint),) if hint else ()),
        ("DAG", dag_run.dag_id),
        ("DAG run", dag_run.run_id),
    )
    reports = tuple((source, f"{uri}/{HTML}") for source, uri in runs.items())
    note = "The last copies of the merged tables are unchanged, unless a copy was published before the failure."
    sections = Section("What went wrong", ("", ""), why, note), Section("Sources", ("source", "report"), reports)
    return write_pages(folder, Report("Merged tables of several sources: not published", sections))


def _union(folder: Storage, union: Union, result: UnionResult, dag_run: DagRunName) -> Section:
    rows = (
        ("DAG", dag_run.dag_id),
        ("DAG run", dag_run.run_id),
        ("took", f"{result.seconds:,.1f} s, to compare the keys and to publish"),
        ("asked for", union.as_of or "the present of the runs"),
        *((("NOT MET", f"a source could not be copied as of {union.missed_as_of}"),) if union.missed_as_of else ()),
        ("published at", union.published_at),
        ("records", folder.uri),
    )
    return Section("The union", ("", ""), rows)


def _sources(union: Union) -> Section:
    if union.in_order:
        order = "The positions were recorded one after the other, in this order."
    else:
        order = "It is not known that the positions were recorded in this order."
    note = (
        f"Each shard is exact at the position of its source. {order} A row that moved from one source to another may "
        "be there twice, or not at all."
    )
    return Section("Sources", ("source", "position", "recorded at", "report"), tuple(map(_source, union.members)), note)


def _source(member: Member) -> tuple[str, ...]:
    position, recorded_at = (str(member.position.get(name, "")) for name in ("position", "recorded_at"))
    return member.source_conn_id, position, recorded_at, f"{member.run_uri}/{HTML}"


def _tables(union: Union, result: UnionResult) -> Iterator[tuple[str, ...]]:
    """Yield a row for each merged table, and below it a row for each of its shards."""
    positions = union.positions
    for name, shards in result.shards.items():
        merged = f"merged from {format_count(len(shards), 'shard')}"
        yield name, f"{result.rows[name]:,}", merged, result.published[name]
        for shard, rows in shards.items():
            yield f"└ {shard}", f"{rows:,}", positions[shard.partition(":")[0]], ""
