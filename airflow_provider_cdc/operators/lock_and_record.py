"""The second step: fixes the initial position and writes the run's manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_cdc.core import records
from airflow_provider_cdc.core.manifest import Manifest, RunTable
from airflow_provider_cdc.core.options import StepOptions
from airflow_provider_cdc.core.plan import TablePlan
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, LogGone
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.operators.base import TargetOperator, airflow_errors, lake_of, run_folder, run_id_of
from airflow_provider_cdc.operators.parameters import Allowed
from airflow_provider_cdc.operators.releasing import ReleasingOperator
from airflow_provider_cdc.sources.capabilities import KeepsForRun, Source, record_point

if TYPE_CHECKING:
    from airflow.sdk import Context


class LockAndRecordOperator(TargetOperator, ReleasingOperator):
    """Fix the initial position, under a short lock where a table's consistency needs one, and write the manifest.

    A manifest that exists already is kept: what was read so far belongs to its initial position. Unless the source no
    longer has what it kept for that position: then nothing more can be read for it, and the run begins anew.

    XComs: ``run_uri``, the run's folder, and the initial position under the source's own name for it
    (``initial_gtid_set``, ``initial_lsn``).

    :param source_conn_id: connection to the source.
    :param target: URI of the folder to publish in; ``{source}`` in it stands for ``source_conn_id``.
    :param plan: XCom ``plan`` of preflight.
    :param options: XCom ``options`` of preflight.
    :param skipped: XCom ``skipped`` of preflight.
    :param source_conn_ids: the connections that may be named, as for preflight.
    :param targets: the folders that may be published in, as for preflight.
    """

    template_fields: Sequence[str] = ("source_conn_id", "target", "plan", "options", "skipped")

    def __init__(
        self,
        *,
        source_conn_id: str,
        target: str,
        plan: Any,
        options: Any,
        skipped: Any = None,
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(multiple_outputs=True, **kwargs)
        self.source_conn_id = source_conn_id
        self.target = target
        self.plan = plan
        self.options = options
        self.skipped = skipped
        self.allowed = Allowed(source_conn_ids, targets)
        self._recording = False

    def execute(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            self.allowed.check(self.source_conn_id, self.target)
            lake = lake_of(self.target, self.source_conn_id)
            run_id = run_id_of(context, lake)
            run = run_folder(lake, run_id)
            source = open_hook(self.source_conn_id).get_conn()
            plans = records.decode(list[TablePlan], self.plan, "XCom plan of preflight")
            self._recording = True
            manifest = _current(run)
            if manifest is None or not self._keeps(manifest, run, source, plans):
                manifest = self._record(run, run_id, source, plans)
            self._recording = False
        return {"run_uri": run.uri, manifest.position_key: manifest.initial_position}

    def _keeps(self, manifest: Manifest, run: Storage, source: Source, plans: Sequence[TablePlan]) -> bool:
        """Whether the run goes on with a manifest that is there."""
        if manifest.kind != source.kind:
            raise ConfigurationError(
                f"the run began on a {manifest.kind} source, and {self.source_conn_id!r} is a {source.kind} one",
                where=run.uri,
                hint="correct the connection, or trigger a new run",
            )
        if manifest.abandoned:
            return False
        if not manifest.committed:
            try:
                source.check_identity(manifest.identity, manifest.initial_position)
            except LogGone as error:
                self.log.warning("The run begins anew: %s", error)
                return False
        self.log.info(
            "The run began at %s: keeping %s %s", manifest.created_at, manifest.position_key, manifest.initial_position
        )
        tables = {str(run_table.table.name) for run_table in manifest.tables}
        if tables != (wanted := {str(plan.table) for plan in plans}):
            self.log.warning(
                "The run keeps the tables that it began with, although the plan is another now (only in the run: %s; "
                "only in the plan: %s). Trigger a new run to copy what the plan says.",
                ", ".join(sorted(tables - wanted)) or "none",
                ", ".join(sorted(wanted - tables)) or "none",
            )
        return True

    def on_kill(self) -> None:
        # What is being made on the source is unmade on the way out.
        if self._recording:
            raise AirflowException("killed while the initial position was being recorded")

    def _record(self, run: Storage, run_id: str, source: Source, plans: Sequence[TablePlan]) -> Manifest:
        options = records.decode(StepOptions, self.options, "XCom options of preflight")
        try:
            initial = record_point(source, options, plans, run_id)
        except CdcError as error:
            # A concurrent attempt may already have committed, and then discards what this one was making.
            current = _current(run)
            if current is None or not self._keeps(current, run, source, plans):
                raise
            self.log.info("A concurrent attempt has fixed the position; this one ended with: %s", error)
            return current
        by_name = {plan.table: plan for plan in plans}
        manifest = Manifest(
            run_id=run_id,
            kind=source.kind,
            position_key=source.position_key,
            initial_position=initial.position,
            identity=dict(initial.identity),
            source_conn_id=self.source_conn_id,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            tables=[
                RunTable(table, by_name[table.name].consistency, by_name[table.name].reason) for table in initial.tables
            ],
            options=options,
            skipped=dict(self.skipped or {}),
        )
        # A concurrent attempt may already have committed, and chunks may have been read since: rows read before a
        # position must never be rewound to it.
        counts: Manifest | None = None
        while counts is None or counts.digest != manifest.digest:
            current = _current(run)
            if current is not None and self._keeps(current, run, source, plans):
                self._discard(source, initial.identity)
                return current
            counts = manifest.save(run, instead_of=current)
        for identity in initial.superseded:
            self._discard(source, identity)
        self.log.info(
            "%s is %s (%d tables, lock held for %.0f ms)",
            source.position_key,
            initial.position,
            len(initial.tables),
            initial.lock_seconds * 1000,
        )
        return manifest

    def _discard(self, source: Source, identity: Mapping[str, str]) -> None:
        """Have the source drop what it keeps for a position that does not count. It goes with the run at the latest."""
        try:
            if isinstance(source, KeepsForRun):
                source.discard(identity)
        except CdcError as error:
            self.log.warning("The source keeps what it made for another attempt until the run ends: %s", error)


def _current(run: Storage) -> Manifest | None:
    return Manifest.load(run) if Manifest.exists(run) else None
