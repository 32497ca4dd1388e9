"""Decides to which history each table's copy belongs. This is decided once, when a run begins, and the manifest stores
the result.

The source checks the position and the mark of the previous copy. There are three results: the history continues; the
history ended, because the server was set back; or this is unknown, because the server no longer has the log that would
show it. Later steps, and later runs that compare copies, use the result in the manifest. So every try of the run has
the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_cdc.core.copies.head import (
    Copy,
    is_newer,
    is_of_another_source,
    position_of,
    trace_of,
)
from airflow_provider_cdc.core.copies.retention import copy_of, tables_of
from airflow_provider_cdc.core.positions.facts import (
    KEPT,
    Finding,
    History,
    HistoryRelation,
    Superseded,
    history_in,
    number_in,
)
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.commit_record import published_run
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError, PreflightError, Problem
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sources.api.source import Source

_ANEW = "clear the task `preflight` and all tasks after it: the table is then read in full"
_IS_MERGED = "the target has a merged table with this name, which this copy would replace"
_RENAME = "use another target, or give the merged table another name"
_DIGITS = 16
_READERS = 8
_NO_COPY = Finding(HistoryRelation.UNKNOWN)

_log = logging.getLogger(__name__)


def histories_of(
    source: Source,
    heads: Sink,
    scratch: Storage,
    plans: Sequence[TablePlan],
    initial: InitialPoint,
    present: Mapping[str, str],
    run_id: str,
    begun_at: str,
) -> dict[str, History]:
    """Return the history that each table's copy will belong to, by the table's name.

    :param scratch: the folder that holds the folders of runs.
    :param present: the run's source, as returned by `source_of`.
    :raises PreflightError: the plan rolls a table forward, but the history of its copy has ended meanwhile, or may have
        ended.
    """
    # Read the copies before asking the server. Then, if the server reports that its history continues, the server has
    # all transactions that these copies contain.
    before = _copies_before(heads, scratch, plans, present, initial.position)
    shown = {plan.table: trace_of(copy) for plan in plans if (copy := before[plan.table])}
    # Most tables were copied by the same run, so check each trace once.
    traces = list(dict.fromkeys(shown.values()))
    findings = source.relations(initial.identity, initial.position, traces) if traces else []
    by_trace = dict(zip(traces, findings, strict=True))
    histories = {}
    for plan in plans:
        copy = before[plan.table]
        if copy is not None and copy.shards and plan.shard is None:
            raise PreflightError([Problem(str(plan.table), _IS_MERGED, _RENAME, str(plan.table))])
        finding = by_trace[shown[plan.table]] if plan.table in shown else _NO_COPY
        if copy is not None and plan.base == copy.run_id and _is_lost(copy, finding):
            what = f"its copy can no longer be rolled forward: {finding.why}"
            raise PreflightError([Problem(str(plan.table), what, _ANEW, str(plan.table))])
        history = _history(copy, finding, initial.identity.mark, run_id, begun_at)
        _log_history(plan.table, copy, history, run_id)
        histories[str(plan.table)] = history
    return histories


def _is_lost(copy: Copy, finding: Finding) -> bool:
    # Copies that were made by earlier versions of this package have no mark. Whether a copy without a mark can be
    # rolled forward depends on the server's identity.
    return finding.relation is HistoryRelation.OTHER or (
        finding.relation is HistoryRelation.UNKNOWN and bool(trace_of(copy).mark)
    )


def _history(copy: Copy | None, finding: Finding, mark: str, run_id: str, begun_at: str) -> History:
    new_id = records.digest_of([run_id, begun_at, mark])[:_DIGITS]
    if copy is None:
        return History(new_id, begun_by=run_id)
    last, number = history_in(copy.history), number_in(copy.history)
    ended = last.superseded if last else ()
    if finding.relation is HistoryRelation.OTHER:
        one = Superseded(last.id if last else "", copy.run_id, position_of(copy), finding.why, run_id, begun_at)
        return History(new_id, number + 1, run_id, superseded=(*ended, one)[-KEPT:])
    if finding.relation is HistoryRelation.SAME and last is not None:
        return last
    # Keep the history number, so that the positions of earlier and later copies are still compared. The comparison is
    # safe, because the server has all transactions up to the copy's position.
    return History(new_id, number, run_id, finding.why, ended)


def _log_history(table: TableName, copy: Copy | None, own: History, run_id: str) -> None:
    if copy is None or own.begun_by != run_id:
        return
    if (ended := own.ended_by(run_id)) is not None:
        _log.warning(
            "%s: the source was set back after the copy of run %s: %s. This run's copy begins a new history, and "
            "supersedes all earlier copies, even copies with later positions.",
            table,
            ended.run_id,
            ended.why,
        )
    elif own.unproven and trace_of(copy).mark:
        _log.warning(
            "%s: cannot tell whether the source was set back after the copy of run %s: %s. The run compares only "
            "positions, or times if the timelines differ, to decide which copy is newer.",
            table,
            copy.run_id,
            own.unproven,
        )


def _copies_before(
    heads: Sink, scratch: Storage, plans: Sequence[TablePlan], present: Mapping[str, str], position: Position
) -> dict[TableName, Copy | None]:
    def find(plan: TablePlan) -> Copy | None:
        return heads.head(plan.copy_name) or _newest(heads, scratch, plan, present, position)

    # Use threads, because each lookup waits for the store.
    with ThreadPoolExecutor(_READERS) as readers:
        return dict(zip((plan.table for plan in plans), readers.map(find, plans), strict=True))


def _newest(
    heads: Sink, scratch: Storage, plan: TablePlan, present: Mapping[str, str], position: Position
) -> Copy | None:
    """For a table whose `_latest.json` was removed, return the newest copy. Only copies that a run recorded are
    considered; None: there is no such copy."""
    newest: Copy | None = None
    for run_id in heads.copies(plan.copy_name):
        try:
            run = published_run(scratch, run_id)
            copy = copy_of(run, plan.copy_name)
            if plan.copy_name not in tables_of(run) or is_of_another_source(copy, present, position):
                continue
        except ManifestError:
            continue
        if newest is None or is_newer(copy, newest):
            newest = copy
    return newest
