"""Fixes and checks positions, of the present and of the past."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, Trace
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings, KeptObject, LeftByRun, Starts
from airflow_provider_cdc.sources.postgres.server import server, session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import log_session, session, value
from airflow_provider_cdc.sources.postgres.slots import publications, slots
from airflow_provider_cdc.sources.postgres.steps import past, roll_forward, snapshot, standing_slot
from airflow_provider_cdc.sources.postgres.steps.check_identity import check_identity


class PostgresStarts(Starts):
    """`Starts` for PostgreSQL."""

    settings: ConnectionSettings

    def here(self) -> tuple[Facts, Lsn]:
        with session(self.settings) as connection:
            return server.identity(connection).recorded(), Lsn.parse(value(connection, "pg_current_wal_lsn()::text"))

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        return snapshot.record_initial(self.settings, plans, lock, run_id, self.settings.options.get("publication", ""))

    def check_identity(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection, log_session(self.settings, connection) as log:
            check_identity(connection, PostgresFacts.of(identity), Lsn.expect(position), log)

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        settings = session_setup.of_run(self.settings, PostgresFacts.of(identity), Lsn.expect(position))
        with session(settings) as connection:
            return server.relations(settings, connection, traces)

    def take_over(self, identity: Facts, position: Position, tables: Sequence[Table]) -> Facts:
        facts, at = PostgresFacts.of(identity), Lsn.expect(position)
        with session(self.settings) as connection:
            found = server.taken_over(self.settings, connection, facts, at)
        return identity if found == facts else found.recorded()

    def release(self, run_id: str) -> bool:
        slots.release(self.settings, run_id)
        return True

    def discard(self, identity: Facts) -> None:
        slots.discard(self.settings, PostgresFacts.of(identity))

    def left_by_runs(self) -> list[LeftByRun]:
        with session(self.settings) as connection:
            return publications.left_by_runs(connection)

    def kept_objects(self, run_ids: Collection[str]) -> list[KeptObject]:
        with session(self.settings) as connection:
            return slots.kept_objects(self.settings, connection, run_ids)

    def drop_unused(self, one: KeptObject) -> str:
        return slots.drop_unused(self.settings, one)

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        _require_log_of_source(self.settings)
        past.check_past(self.settings, as_of, plans, options)

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        return past.record_past(self.settings, as_of, plans, options, run_id)

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        _require_log_of_source(self.settings)
        standing_slot.keep_past(self.settings, plans, options)

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        facts, position = PostgresFacts.of(point.identity), Lsn.expect(point.position)
        standing_slot.note_position(session_setup.of_run(self.settings, facts, position), options)

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        of_lakes = {lake: {name: Lsn.expect(at) for name, at in own.items()} for lake, own in copies.items()}
        standing_slot.note_copies(self.settings, options, of_lakes, incarnation)

    def give_up_past(self, options: StepOptions) -> None:
        standing_slot.give_up_past(self.settings, options)

    def refusals_since(
        self,
        identity: Facts,
        position: Position,
        tables: Sequence[Table],
        to: AsOf | None,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        facts, at, bounds = PostgresFacts.of(identity), Lsn.expect(position), (keys_only, bases, evolutions)
        return roll_forward.refusals_since(self.settings, facts, at, tables, to, options, *bounds)

    def check_since(self, identity: Facts, position: Position) -> None:
        roll_forward.check_since(self.settings, PostgresFacts.of(identity), Lsn.expect(position))

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        return roll_forward.keep_window(self.settings, point, plans, options, run_id)


def _require_log_of_source(settings: ConnectionSettings) -> None:
    """Refuse a standby as the place of a log that outlives the run. The slot of a standby is gone after a failover of
    this standby, and its record would have to be changed on the source."""
    if settings.log_server is not None:
        raise PreflightError(
            [
                Problem(
                    "parameter log_conn_id (Read.log_conn_id)",
                    "the standing slot is on the source, so copies of the past, and copies that are rolled forward, "
                    "cannot be made from the log of a standby",
                    "leave `Read.log_conn_id` empty; or leave `Refresh.standing_slot` and `as_of` empty, so that the "
                    "run reads the tables in full",
                )
            ]
        )
