"""Makes the rows of a run's cut: one row for each table, with the snapshot to read."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_cdc.core.copies.head import is_newer
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg.catalog import name_of
from airflow_provider_cdc.sinks.iceberg.commit import CommittedTable
from airflow_provider_cdc.sinks.iceberg.cuts.cut_table import CutRow, copy_in, newest_rows


def rows_of_run(
    publication: Publication,
    committed: Sequence[CommittedTable],
    left_out: Collection[str],
    existing: Sequence[CutRow],
) -> list[CutRow]:
    """Return the rows of a run's cut.

    :param committed: the committed tables, in the order of the publication.
    :param left_out: the names of the Iceberg tables that belong to the group but not to this run.
    :param existing: the rows of all earlier cuts.
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
    return rows + _carried(publication, left_out, existing, latest=any(row.latest for row in rows) or not rows)


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
