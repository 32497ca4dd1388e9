"""Makes the rows of a run's cut: one row for each table, with the snapshot to read.

A cut must not name a snapshot that the catalog does not have. So every table is read again before the cut is committed,
whatever the catalog answered to the commit of the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog

from airflow_provider_cdc.core.copies.head import is_newer
from airflow_provider_cdc.errors import PublishIncomplete
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg.catalog import COMPLETE, identifier_in, name_of
from airflow_provider_cdc.sinks.iceberg.commit import CommittedTable, has_snapshot
from airflow_provider_cdc.sinks.iceberg.cuts.cut_table import CutRow, copy_in, newest_rows

_READERS = 8

_log = logging.getLogger(__name__)


def rows_of_run(
    catalog: Catalog,
    publication: Publication,
    committed: Sequence[CommittedTable],
    left_out: Collection[str],
    existing: Sequence[CutRow],
) -> list[CutRow]:
    """Return the rows of a run's cut.

    :param committed: the committed tables, in the order of the publication.
    :param left_out: the names of the Iceberg tables that belong to the group but not to this run.
    :param existing: the rows of all earlier cuts.
    :raises PublishIncomplete: the catalog does not have the snapshot of a committed table.
    """
    newest = newest_rows(existing)
    rows = []
    for change, table in zip(publication.tables, committed, strict=True):
        row = CutRow(
            run_id=publication.run_id,
            source=json.dumps(dict(publication.source)),
            group=publication.group,
            position=publication.position,
            recorded_at=_time(publication.recorded_at),
            published_at=_time(publication.published_at),
            table=str(change.table),
            identifier=name_of(table.identifier),
            table_uuid=table.uuid,
            snapshot_id=table.snapshot_id,
            table_position=publication.position,
            rows=change.rows,
            schema_id=table.schema_id,
            history=json.dumps(dict(change.history)),
            digest=change.certificate.get("digest") or None,
        )
        before = newest.get(row.identifier)
        is_latest = before is None or before.table_uuid != row.table_uuid or is_newer(copy_in(row), copy_in(before))
        rows.append(replace(row, latest=is_latest))
    carried = _carried(publication, left_out, existing, latest=any(row.latest for row in rows) or not rows)
    lost = _lost(catalog, [*rows, *carried])
    if lost_now := next((row for row in rows if row in lost), None):
        raise PublishIncomplete(
            f"the catalog does not have the snapshot {lost_now.snapshot_id}, which this run committed",
            where=lost_now.identifier,
            hint=COMPLETE,
        )
    for row in lost:
        _log.warning(
            "The cut of this run leaves out %s: the catalog does not have its last copy, the snapshot %d of %s",
            row.table,
            row.snapshot_id,
            row.identifier,
        )
    return [*rows, *(row for row in carried if row not in lost)]


def _lost(catalog: Catalog, rows: Sequence[CutRow]) -> list[CutRow]:
    """Return the rows whose snapshots the catalog does not have."""

    def is_there(row: CutRow) -> bool:
        return has_snapshot(catalog, identifier_in(row.identifier), row.table_uuid, row.snapshot_id)

    with ThreadPoolExecutor(_READERS) as readers:
        return [row for row, there in zip(rows, readers.map(is_there, rows), strict=True) if not there]


def _carried(
    publication: Publication, left_out: Collection[str], existing: Sequence[CutRow], latest: bool
) -> list[CutRow]:
    """Return the rows of the tables that a run leaves out. Each row names the table's newest copy that is not newer
    than the run's cut."""
    run_id, position, group = publication.run_id, publication.position, publication.group
    newest: dict[str, CutRow] = {}
    for row in existing:
        copy = copy_in(row)
        cut = replace(copy, run_id=run_id, position=position, recorded_at=publication.recorded_at)
        is_own = row.table_position == row.position
        if row.identifier not in left_out or not is_own or is_newer(copy, cut):
            continue
        if row.identifier not in newest or is_newer(copy, copy_in(newest[row.identifier])):
            newest[row.identifier] = row
    return [
        replace(row, run_id=run_id, position=position, group=group, latest=latest) for _, row in sorted(newest.items())
    ]


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value if value.tzinfo else value.replace(tzinfo=UTC)
