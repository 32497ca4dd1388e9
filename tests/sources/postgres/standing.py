"""A database with a standing slot, for tests: the calls that runs make, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.slots import SlotState
from airflow_provider_cdc.sources.postgres.slots.standing_record import Standing, load, name_of
from harness.postgres_server import PostgresServer
from tests.sources.postgres.log.reading import settings

RUN_ID = "20260101T000000Z-0a1b2c3d"
OPTIONS = StepOptions(
    standing_slot="test",
    lock=LockPolicy(wait_seconds=10, tries=2, pause_seconds=0.1, slot_wait_seconds=60),
)


@dataclass
class Kept:
    """The past of a database, as runs with the standing slot ``test`` see it."""

    server: PostgresServer
    database: str
    options: StepOptions = OPTIONS

    def __post_init__(self) -> None:
        self.source = PostgresSource(settings(self.server, self.database))

    @property
    def name(self) -> str:
        with session(self.source.settings) as connection:
            return name_of(connection, self.options.standing_slot)

    @property
    def slot(self) -> SlotState:
        with session(self.source.settings) as connection:
            found = slots.state(connection, self.name)
        assert found is not None
        return found

    @property
    def record(self) -> Standing:
        with session(self.source.settings) as connection:
            found = load(connection, self.name)
        assert found is not None
        return found

    def run(self, *statements: str) -> None:
        with self.server.connect(database=self.database) as connection:
            for statement in statements:
                connection.execute(statement)

    def ask(self, sql: str) -> Any:
        return self.server.query(sql, database=self.database)[0][0]

    def here(self) -> str:
        """The end of the log that is on disk, behind all that was committed."""
        self.run("SELECT pg_logical_emit_message(true, 'test', '')")
        return str(self.ask("SELECT pg_current_wal_flush_lsn()::text"))

    def here_quietly(self) -> str:
        """The end of the log, to which nothing is added."""
        return str(self.ask("SELECT pg_current_wal_insert_lsn()::text"))

    def clock(self) -> datetime:
        found: datetime = self.ask("SELECT clock_timestamp()")
        return found

    def plans(self, *tables: str) -> list[TablePlan]:
        return self.source.preflight([f"public.{table}" for table in tables])

    def keep(self, *tables: str) -> None:
        self.source.keep_past(self.plans(*tables), self.options)

    def check(self, point: str | datetime, *tables: str) -> None:
        self.source.check_past(self._parsed(point), self.plans(*tables), self.options)

    def record_at(self, point: str | datetime, *tables: str, run_id: str = RUN_ID) -> InitialPoint:
        return self.source.record_past(self._parsed(point), self.plans(*tables), self.options, run_id)

    def position_of(self, when: datetime, table: str) -> str:
        """Return the position that a time resolves to, and drop the slot that a run would keep for it."""
        found = self.record_at(when, table)
        self.source.release(RUN_ID)
        return str(found.position)

    def refusals(self, point: str | datetime, *tables: str) -> Sequence[Problem]:
        """Why a copy cannot be exact there. Preflight and the recording of the position give the same reasons."""
        found = []
        for refused in (self.check, self.record_at):
            try:
                refused(point, *tables)
            except PreflightError as error:
                found.append(error.problems)
            else:
                raise AssertionError(f"{refused.__name__} does not refuse {point}")
        assert [(problem.where, problem.hint) for problem in found[0]] == [
            (problem.where, problem.hint) for problem in found[1]
        ]
        return found[0]

    def give_up(
        self, hours: int, copies: Mapping[str, Position | str] | None = None, lake: str = "lake", **more: Any
    ) -> None:
        options = replace(self.options, standing_slot_hours=hours, **more)
        self.source.note_copies(
            options, {lake: {table: Lsn.parse(str(at)) for table, at in (copies or {}).items()}}, ""
        )
        self.source.give_up_past(options)

    def forget(self) -> None:
        """Drop everything, as a user does who no longer needs the past."""
        self.source.release(RUN_ID)
        slots.drop(self.source.settings, self.name, self.name)

    @staticmethod
    def _parsed(point: str | datetime) -> as_of.AsOf:
        found = as_of.parse(as_of.text_of(point))
        assert found is not None
        return found
