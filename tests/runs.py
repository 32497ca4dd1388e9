"""Manifests and results of runs for tests, which specify only what matters to the test."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.ledger import FilesCommitted
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.results import (
    CONSOLIDATE,
    EXTRACT_DELTA,
    SNAPSHOT,
    ConsolidateResult,
    DeltaResult,
    SnapshotResult,
)
from airflow_provider_cdc.core.run.run import Run, scratch_of
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

RUN_ID = "20260101T000000Z-00000000"
PUBLISHED_AT = "2026-01-01T00:00:07+00:00"


def manifest_of(lake: Storage, run_id: str = RUN_ID, **more: Any) -> Manifest:
    """A manifest of a MySQL run that publishes in ``lake``."""
    usual: dict[str, Any] = {
        "run_id": run_id,
        "lake": lake.uri,
        "scratch": scratch_of(lake.uri),
        "kind": "mysql",
        "position_key": "initial_gtid_set",
        "initial_position": "",
        "identity": Facts({}),
        "created_at": "2026-01-01T00:00:00+00:00",
        "tables": (),
    }
    return Manifest(**usual | more)


def run_folder(lake: Storage, run_id: str = RUN_ID) -> Storage:
    return Storage(scratch_of(lake.uri)).folder(run_id)


def snapshot_result(rows: int = 0, **more: Any) -> SnapshotResult:
    usual: dict[str, Any] = {"snapshot_upper": "", "log_end": "", "rows": rows, "tables": {}, "nulled": {}}
    return SnapshotResult(**usual | {"lock_seconds": 0.0, "record": ""} | more)


def delta_result(transactions: int = 0) -> DeltaResult:
    return DeltaResult(transactions, 0, {}, 0, "")


def consolidate_result(**more: Any) -> ConsolidateResult:
    usual: dict[str, Any] = {"published": {}, "rows": {}, "rewound": {}, "nulled": {}, "published_at": PUBLISHED_AT}
    return ConsolidateResult(**usual | {"files_rewritten": 0, "files_adopted": 0} | more)


def commit(run: Run, token: str = "try") -> FilesCommitted:
    """Record the results of the steps before consolidate, as far as they are missing, and a commit of empty copies."""
    run.finish_step(SNAPSHOT, snapshot_result())
    run.finish_step(EXTRACT_DELTA, delta_result())
    files: dict[str, tuple[StagedFile, ...]] = {str(entry.table.name): () for entry in run.manifest.tables}
    decision = Decision(files, dict.fromkeys(files, 0), {}, 0, 0, PUBLISHED_AT)
    return run.record_commit(records.write_named(run.folder, "commit/files", decision), token)


def publish(run: Run, result: ConsolidateResult | None = None, **more: Any) -> ConsolidateResult:
    """Record the results of all steps, as far as they are missing."""
    commit(run)
    return run.finish_step(CONSOLIDATE, result or consolidate_result(**more))
