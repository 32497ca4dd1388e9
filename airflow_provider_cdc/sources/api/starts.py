"""The part of `Source` for the positions from which a run reads tables or rolls copies forward, and for the objects
that the server keeps for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, SchemaChanged

SLOT, PUBLICATION = "replication slot", "publication"


@dataclass(frozen=True)
class LeftByRun:
    """A run for which the server still keeps objects, and the names by which Airflow identifies the DAG run."""

    run_id: str
    dag_id: str
    dag_run_id: str


@dataclass(frozen=True)
class KeptObject:
    """An object that a server keeps for a run.

    :param kind: `SLOT` or `PUBLICATION`.
    :param run_id: the run; empty: unknown.
    :param dag_id: the names of the task that created the object; empty: unknown.
    :param pid: the session that uses the object; 0: none.
    :param bytes: the size of the log that the server keeps because of the object.
    """

    kind: str
    name: str
    run_id: str
    dag_id: str = ""
    dag_run_id: str = ""
    task_id: str = ""
    pid: int = 0
    bytes: int = 0


class Starts(ABC):
    """The methods of `sources.api.source.Source` for positions."""

    kind: ClassVar[str]
    position_key: ClassVar[str]
    """The name of the initial position in XComs, manifests and ``_latest.json``: ``initial_gtid_set``,
    ``initial_lsn``."""

    @abstractmethod
    def here(self) -> tuple[Facts, Position]:
        """Return the identity of the connected server, as in `InitialPoint`, and the latest position of its history.

        :raises SourceUnavailable: the server cannot be reached.
        """

    @abstractmethod
    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        """Fix the initial position, and then read the schemas. Because of this order, the window contains all DDL that
        is not yet in effect in the schemas.

        Several tries of a run may call this method at the same time. Each try creates its own objects on the server
        (`release`). The names of the objects begin with a prefix that is derived from ``run_id``. A try does not
        remove the objects of another try.

        :raises LockNotGranted: a table needs a lock, and the lock was not granted.
        """

    @abstractmethod
    def of_run(self, identity: Facts, position: Position) -> Self:
        """Return this source for the steps of one run.

        Some sessions read rows or the log, or bound reads. In its first round trip, each of these sessions checks that
        it has reached the server of ``identity``, and that this server has everything up to ``position``. The check is
        needed because several servers may share an address.

        The methods of the returned source raise `SourceReplaced` if a session reaches another server, or a server that
        lags behind.
        """

    @abstractmethod
    def check_identity(self, identity: Facts, position: Position) -> None:
        """Check that the server is still the server on which the run began, and that its history and settings are
        intact.

        :raises SourceReplaced: another server answered, or the server's history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting on which the proof depends was changed since the run began.
        """

    def take_over(self, identity: Facts, position: Position, tables: Sequence[Table]) -> Facts:
        """Return the facts by which the connected server continues what rests on ``position`` of the server of
        ``identity``: a copy of ``tables``. If it is the same server, these facts are ``identity``.

        :raises SourceReplaced: the position is not in the history of the connected server.
        :raises ExactnessError: it is unknown whether it is, or the server no longer has the log since the position.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return identity

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        """Compare the history of the server of ``identity`` with the histories of earlier copies of this source, and
        return the relations. The server has everything up to ``position``.

        Return `Relation.OTHER` only if it is proved that the histories differ. If they differ, copies of the present
        history supersede the earlier copies.

        :raises SourceReplaced: the connection reaches another server.
        :raises SourceUnavailable: the server cannot be reached.
        """
        why = f"a {self.kind} source does not recognize its history"
        return [Finding(HistoryRelation.UNKNOWN, why) for _ in traces]

    # Objects that the server keeps for a run, such as a replication slot. They exist from `record_initial` until they
    # are released. If a run has several tries, each try may have created such objects.

    def release(self, run_id: str) -> bool:
        """Remove the objects that the tries of the run created on the server. It is not an error if no object is left.
        Return whether servers of this kind keep such objects.

        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """
        return False

    def discard(self, identity: Facts) -> None:
        """Remove the objects that one call of `record_initial` created on the server, because the run does not use the
        position of this call. It is not an error if no object is left.

        :param identity: the identity that this call of `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """

    def left_by_runs(self) -> list[LeftByRun]:
        """Return the runs for which the server keeps objects, including runs in progress.

        :raises SourceUnavailable: the server cannot be reached.
        """
        return []

    def kept_objects(self, run_ids: Collection[str]) -> list[KeptObject]:
        """Return the objects that the server keeps for runs, including runs in progress.

        :param run_ids: the runs that are known. An object may have a name that only the run's id explains.
        :raises SourceUnavailable: the server cannot be reached, or is a standby.
        """
        return []

    def drop_unused(self, one: KeptObject) -> str:
        """Drop an object unless a session uses it. Return why the object stays; empty: it no longer exists."""
        return f"a {self.kind} source keeps no objects for runs"

    # Positions of the past

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Check that a copy of these tables can be exact at ``as_of``. Everything on which the copy depends must be
        unchanged since ``as_of``.

        :raises PreflightError: a copy cannot be exact at ``as_of``. The error lists every problem, and the earliest
            time at which a copy can be exact.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise self._no_past()

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        """Record the initial position as `record_initial` does, but at the position that ``as_of`` names.
        The position of a time is final: no later commit can belong to it.

        :raises PreflightError: a copy of these tables cannot be exact at the position that ``as_of`` names.
        :raises SourceUnavailable: the position of the time ``as_of`` does not become final, because of a fault of the
            server.
        """
        raise self._no_past()

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Make the server keep, from now on, the log that `record_past` needs for these tables. If the server already
        keeps this log, nothing changes.

        :raises LockNotGranted: open transactions delayed this operation for too long.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        """Record on the server that a run began at ``point``. If `note_copies` fails later, the copies of the run can
        still be rolled forward from ``point``. This does not apply to copies that are exact at a later position.

        :raises TransientError: the server cannot be reached, or other runs repeatedly changed the record at the same
            time.
        """

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        """Record on the server the copies that a run has published. Only recorded copies are rolled forward. Call this
        method on the source that `of_run` returned, and before `release`. The objects that the server keeps
        for the run prove that the server's history is the history of the copies.

        :param copies: for each lake, the positions of the tables' latest copies in this lake, by table name.
        :param incarnation: if these positions are after the run's initial position, the incarnation of the server when
            it reached them. Otherwise empty. If the server is set back to a point before these positions, the server's
            incarnation changes (`ChunkReader.wait_until_durable`).
        :raises ExactnessError: the connection reaches another server, or the server's disk was set back to an earlier
            state, or the server no longer keeps the log.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def give_up_past(self, options: StepOptions) -> None:
        """Allow the server to remove log that is older than ``options.standing_slot_hours``. The server still keeps the
        log since the last copies, so that they can be rolled forward. The server keeps this log for some days, for
        every table and lake that `note_copies` recorded.

        :raises SourceUnavailable: the server cannot be reached, so it continues to keep all log.
        """

    def _no_past(self) -> ConfigurationError:
        return ConfigurationError(
            f"a run cannot copy a {self.kind} source as of a past position",
            where="parameter as_of",
            hint="leave the option `as_of` empty",
        )

    # Copies that are rolled forward

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
        """Return the reasons why copies cannot be rolled forward, by table. Tables whose copies can be rolled forward
        are not in the result.

        :param identity: the identity of the server from which the copies were made.
        :param position: the position at which the copies are exact.
        :param to: the position or time to which the copies are rolled forward. None: now.
        :param keys_only: read only the keys of touched rows (consistency ``again``).
        :param bases: the number of different positions of the copies that the run may roll forward.
        :param evolutions: receives the schema changes of tables that can be rolled forward over them. None: tables with
            schema changes are refused.
        :raises ExactnessError: no copy can be rolled forward.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return {table.name: "copies of this kind of source cannot be rolled forward yet" for table in tables}

    def check_since(self, identity: Facts, position: Position) -> None:
        """Check three conditions. The connected server must be the server of ``identity``, which had ``position``. The
        server's history since ``position`` must be intact. Everything that the log does not show must be unchanged
        since ``position``.

        :raises ExactnessError: one of these conditions does not hold.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"copies of a {self.kind} source cannot be rolled forward yet",
            where="parameter refresh",
            hint="set `refresh` to `full` or `auto`: the run then reads the tables in full",
        )

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        """Make the server keep the log between the last copies and the run's ``point``, so that ``plans`` can roll the
        copies forward. The server keeps this log until the run is released (`release`). Return ``point`` with an
        identity that also names this log. Before this method raises an error, it discards the objects that were created
        for ``point``.

        :raises PreflightError: the log no longer exists, or a table was altered after its last copy.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return point

    def check_replaced(self, identity: Facts, tables: Sequence[Table], until: Facts, now: Sequence[Table]) -> None:
        """Check that no table in ``tables`` was replaced without an entry in the log. An earlier run recorded the
        tables on the server of ``identity``. The check covers the time since this run.

        :param until: the identity that was recorded by the run that depends on the tables. Changes that were logged
            after the beginning of that run are irrelevant.
        :param now: the tables as they were recorded by the run that depends on them, just before its position. Empty:
            the position of that run is in the past (``as_of``).

        :raises SchemaChanged: a table was replaced.
        :raises SourceUnavailable: the server cannot be reached.
        """

    # Tables whose finished reads are kept when a run moves to a later position

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        """Return the tables that a statement in the log since the position of the run changes, each with an error that
        names the statement. If the log has something at which a run stops anyway, later statements may be missing.

        :raises LogGone: the log no longer reaches back to the position.
        """
        return {}

    def refresh_identities(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Check that nothing has changed ``tables`` without an entry in the log since they were recorded, and return
        them with the present facts. Later checks compare the tables with these facts.

        :raises SchemaChanged: a table was changed without an entry in the log.
        :raises LogGone: the log no longer reaches back to the position of the run.
        """
        return tables

    def with_facts_of(self, identity: Facts) -> Self:
        """Return this source for tables whose facts were renewed just before a later position of the run was fixed.
        ``identity`` is what was recorded with that position. The log before it explains no later change."""
        return self
