"""Fixes and checks positions, of the present and of the past."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.core.checks import Moment
from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, Trace
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Starts
from airflow_provider_cdc.sources.mysql.server import server
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session, value
from airflow_provider_cdc.sources.mysql.steps import snapshot
from airflow_provider_cdc.sources.mysql.steps.check_identity import check_identity
from airflow_provider_cdc.sources.mysql.tables.identity import has_other_identity


class MysqlStarts(Starts):
    """`Starts` for MySQL."""

    settings: ConnectionSettings

    def here(self) -> tuple[Facts, GtidSet]:
        with session(self.settings) as connection:
            executed = server.executed(connection)
            return server.identity(self.settings, connection).recorded(), executed

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        return snapshot.record_initial(self.settings, plans, lock)

    def check_identity(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection:
            check_identity(self.settings, connection, MysqlFacts.of(identity), GtidSet.expect(position))

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        from airflow_provider_cdc.sources.mysql.steps import takeover

        here = RunSettings.of(self.settings, MysqlFacts.of(identity), GtidSet.expect(position))
        with session(here) as connection:
            return takeover.relations(here, connection, traces)

    def take_over(self, identity: Facts, position: Position, tables: Sequence[Table]) -> Facts:
        from airflow_provider_cdc.sources.mysql.steps import takeover

        facts = MysqlFacts.of(identity)
        found = takeover.continued(self.settings, facts, GtidSet.expect(position), tables)
        return identity if found is facts else found.recorded()

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        from airflow_provider_cdc.sources.mysql.steps import past

        past.check_past(self.settings, as_of, plans)

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        from airflow_provider_cdc.sources.mysql.steps import past

        return past.record_past(self.settings, as_of, plans)

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
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        facts = MysqlFacts.of(identity)
        return roll_forward.refusals_since(self.settings, facts, GtidSet.expect(position), tables, to, evolutions)

    def check_since(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection:
            check_identity(
                self.settings, connection, MysqlFacts.of(identity), GtidSet.expect(position), Moment.ROLL_FORWARD
            )

    def check_replaced(self, identity: Facts, tables: Sequence[Table], until: Facts, now: Sequence[Table]) -> None:
        with session(self.settings) as connection:
            # Table identities can be compared only on the same server. For copies of another server, `take_over` checks
            # the tables.
            if value(connection, "@@global.server_uuid") == identity.server:
                hint = "clear the task `preflight` and all tasks after it"
                if has_other_identity(connection, tables, {}):
                    from airflow_provider_cdc.sources.mysql.log import replaced

                    begin, end = (MysqlFacts.of(one).place for one in (identity, until))
                    replaced.check_not_replaced(self.settings, connection, begin, tables, hint, {}, end, now)
