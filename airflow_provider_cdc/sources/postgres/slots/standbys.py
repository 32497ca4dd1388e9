"""Finds out how far a standby has replayed the log of the source, and proves which log it replays.

A system identifier, a timeline and positions do not prove it: copies of the source's files have the same, and a copy
that was promoted numbers its log and its transactions like the source. So the run makes transactions on the source of
which some commit and some abort, by chance. A standby that shows the same of all of them has replayed their log.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import psycopg

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import CdcError, ExactnessError, LockNotGranted, LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, session, value
from airflow_provider_cdc.sources.postgres.slots import slots, waits
from airflow_provider_cdc.sources.replicas import name_of

LOG_ELSEWHERE = "name another standby, or leave `Read.log_conn_id` empty"

MAY_LOG_TRANSACTIONS = "has_function_privilege('pg_log_standby_snapshot()', 'EXECUTE')"

_POLL_SECONDS = (0.01, 0.5)
"""The shortest and the longest time between two looks at the standby."""
_BITS = 32
_LOGGED_SECONDS = 0.2
_LAG_SECONDS = 3.0

BACKEND = "pg_catalog.concat_ws(' ', pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_backend_pid())"
"""Tells the process of a server that answers a statement from those of all servers."""
STATE = f"""
SELECT pg_catalog.pg_is_in_recovery()::text,
    COALESCE(pg_catalog.pg_last_wal_replay_lsn(), '0/0')::text,
    CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_get_wal_replay_pause_state() ELSE 'ended' END,
    pg_catalog.current_setting('recovery_min_apply_delay'),
    pg_catalog.current_setting('fsync'),
    {BACKEND}
"""


@dataclass(frozen=True)
class StandbyState:
    """The present state of a standby, from the result of `STATE`."""

    recovering: bool
    replayed: Lsn
    pausing: str
    delay: str
    fsync: str
    backend: str

    @classmethod
    def of(cls, row: tuple[str | None, ...]) -> StandbyState:
        recovering, replayed, pausing, delay, fsync, backend = (text or "" for text in row)
        return cls(recovering == "true", Lsn.parse(replayed), pausing, delay, fsync, backend)

    @property
    def obstacles(self) -> list[str]:
        """What keeps the standby from replaying the log at once."""
        paused = [] if self.pausing == "not paused" else [f"its replay is paused ({self.pausing})"]
        return [*paused, *([] if self.delay == "0" else [f"recovery_min_apply_delay is {self.delay}"])]


@dataclass(frozen=True)
class TransactionMark:
    """Transactions that were made on the source: their ids, and whether each was committed. ``end`` is a position after
    them, and ``incarnation`` the start time of the source."""

    ids: tuple[str, ...]
    committed: tuple[bool, ...]
    end: Lsn
    incarnation: str

    @classmethod
    def make(cls, connection: Connection, where: str) -> TransactionMark:
        """Make the transactions. They are on disk when this method returns.

        :raises SourceUnavailable: the server does not flush its log.
        """
        committed = tuple(secrets.choice((True, False)) for _ in range(_BITS))
        made = [f"BEGIN; SELECT pg_current_xact_id()::text; {'COMMIT' if one else 'ROLLBACK'}" for one in committed]
        # They are flushed together. The setting has a transaction of its own, because the first one may be aborted.
        query(connection, "SET synchronous_commit = off")
        cursor = connection.execute("; ".join([*made, "SET synchronous_commit = local"]).encode())
        ids = []
        while True:
            ids += [str(xid) for (xid,) in cursor.fetchall()] if cursor.description else []
            if not cursor.nextset():
                break
        end, incarnation = waits.wait(partial(query, connection), where)
        return cls(tuple(ids), committed, end, incarnation)

    @property
    def shown(self) -> str:
        """A query for the states of the transactions on a server, and for its `BACKEND`. A server raises an error for
        ids that it does not know yet, so the query does not ask for their states."""
        ids = ", ".join(f"('{xid}'::xid8)" for xid in self.ids)
        return (
            "SELECT string_agg(CASE WHEN m.id < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status(m.id) END, "
            f"' ' ORDER BY m.id), {BACKEND} FROM (VALUES {ids}) m(id)"
        )

    @property
    def states(self) -> str:
        """The states that a server shows that has the transactions."""
        return " ".join("committed" if one else "aborted" for one in self.committed)


@dataclass
class StandbySession:
    """A session on a standby of the source.

    :param ask: returns the rows of a query whose columns are all text.
    :param settings: the settings of the source.
    :param seconds: how long to wait for a position.
    :param elsewhere: the hint that says how to do without the standby.
    :param waited: the seconds that the session waited for positions, as long as no read has reported them.
    :param backend: the `BACKEND` of the session. Empty: no statement has asked for it yet.
    """

    ask: Callable[[str], list[tuple[str | None, ...]]]
    settings: ConnectionSettings
    standby: ConnectionSettings
    seconds: float
    elsewhere: str = LOG_ELSEWHERE
    waited: float = 0.0
    backend: str = ""

    @property
    def where(self) -> str:
        return f"replica {name_of(self.standby)}"

    def state(self) -> StandbyState:
        (row,) = self.ask(STATE)
        state = StandbyState.of(row)
        self.check_backend(state.backend)
        return state

    def check_backend(self, found: str | None) -> None:
        """Check that the process that answered a statement is the one that answered all others of the session.

        Between two transactions, a pooler may exchange the server behind a session. What one server has replayed proves
        nothing about the rows of another.

        :raises ExactnessError: the process is another one.
        """
        self.backend = self.backend or str(found)
        if found != self.backend:
            raise ExactnessError(
                f"several processes answer the statements of one session (started at, pid: {self.backend} and {found})",
                where=self.where,
                hint="this is typical of a pooler or a balancer of statements: connect to the standby directly, or "
                f"{self.elsewhere}",
            )

    def check_ended(self, source: Connection) -> None:
        """Check, after the reads of the session, that they count. ``source`` is a session of the source."""

    def wait_for(self, position: Lsn) -> None:
        """Wait until the standby has replayed the log up to ``position``.

        What is replayed is visible: the position that the server reports follows the work of each record.

        :raises SourceUnavailable: the standby does not get there in time, or was promoted.
        """
        began, pause = time.monotonic(), _POLL_SECONDS[0]
        while (state := self.state()).replayed < position or not state.recovering:
            if not state.recovering:
                raise SourceUnavailable("the standby was promoted meanwhile", where=self.where, hint="retry the task")
            if time.monotonic() - began > self.seconds:
                raise SourceUnavailable(
                    f"the standby has lagged behind position {position} for {self.seconds:.0f} s: it has replayed the "
                    f"log up to {state.replayed}{''.join(f'; {one}' for one in state.obstacles)}",
                    where=self.where,
                    hint="find out why the standby lags or gets no log (pg_stat_wal_receiver; pg_wal_replay_resume() "
                    "on the standby), or raise `Read.replica_wait_seconds`",
                )
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS[1])
        self.waited += time.monotonic() - began

    def confirm(self) -> TransactionMark:
        """Check that all that the session has read is in the log of the source. Return a mark that comes later.

        :raises ExactnessError: the standby replays another log.
        :raises SourceUnavailable: the standby does not replay the mark in time, or was promoted.
        """
        with session(self.settings) as source:
            self.check_ended(source)
            mark = TransactionMark.make(source, self.settings.address)
        self.wait_for(mark.end)
        ((states, backend),) = self.ask(mark.shown)
        self.check_backend(backend)
        if states != mark.states:
            raise ExactnessError(
                f"the standby does not replay the log of the source: at {mark.end}, it does not have the last "
                "transactions of the source",
                where=self.where,
                hint=f"it replays the log of a copy of the source. Name a standby that streams from the source, or "
                f"{self.elsewhere}",
            )
        return mark

    def wait_for_log(self, stop: Lsn) -> None:
        """Wait until the standby has replayed the log of the source up to ``stop``.

        :raises LogGone: the log of the source ends before ``stop``.
        :raises ExactnessError, SourceUnavailable: as for `confirm`.
        """
        mark = self.confirm()
        if mark.end < stop:
            raise LogGone(
                f"the log of the source ends at {mark.end}, but earlier its end was at {stop}",
                where=self.settings.address,
                hint="the server lost a part of its log, or another server answers in its place: trigger a new run",
            )


@contextmanager
def slot_on_standby(settings: session_setup.RunSettings, name: str, seconds: float) -> Iterator[tuple[Lsn, str]]:
    """Create the slot of a run on the standby from which its log is read. Yield the slot's position, and the name of a
    snapshot at this position on the source. The slot exists after the block.

    The position is the consistent point of a temporary slot on the source, as in `slots.new_slot`. The slot of the
    standby begins at an earlier position, because it was created earlier, and is then advanced.

    :param settings: the settings of the source.
    :param name: the name of the slot. The source has a physical slot of this name.
    :raises LockNotGranted: transactions ran for longer than ``seconds``. The message lists these transactions.
    :raises SourceUnavailable, ExactnessError: as for `StandbySession.confirm`.
    """
    assert settings.log_server is not None
    on_standby, on_source = (f"{slots.PREFIX}{place}_{secrets.token_hex(6)}" for place in ("log", "read"))
    standby = session_setup.of_standby(settings.log_server, settings.server)
    with session(standby, replication=True) as leader:
        opened = StandbySession(partial(query, leader), settings, standby, settings.replica_wait_seconds)
        opened.confirm()
        sql = f"CREATE_REPLICATION_SLOT {on_standby} TEMPORARY LOGICAL {slots.PLUGIN} (SNAPSHOT 'export')"
        try:
            with _transactions_logged(settings):
                begin, _ = waits.consistent_point(settings, leader, sql, seconds)
        except LockNotGranted:
            # A standby that gets or replays no log waits, too, whatever transactions there are.
            replace(opened, seconds=_LAG_SECONDS).confirm()
            raise
        with slots.new_slot(settings, on_source, seconds, temporary=True) as (position, view):
            yield position, view
        if position < begin:
            raise ExactnessError(
                f"the slot of the standby begins at {begin}, after the position {position} of the source",
                where=opened.where,
                hint=f"it does not replay the log of the source: {LOG_ELSEWHERE}",
            )
        opened.wait_for(position)
        query(leader, f"SELECT pg_replication_slot_advance('{on_standby}', '{position}')")
        # Unlike an advanced slot, a new one is on disk at once.
        query(leader, f"SELECT pg_copy_logical_replication_slot('{on_standby}', '{name}', false)")


@contextmanager
def _transactions_logged(settings: ConnectionSettings) -> Iterator[None]:
    """Let the source log its running transactions from time to time. A standby begins to decode at such records."""
    done = threading.Event()

    def log() -> None:
        with suppress(CdcError, psycopg.Error), session(settings) as source:
            may = value(source, MAY_LOG_TRANSACTIONS)
            while not done.wait(_LOGGED_SECONDS):
                # Without the privilege, the server does so every 15 s, if there are transactions.
                query(source, "SELECT pg_log_standby_snapshot()" if may else "SELECT pg_current_xact_id()")

    logging_them = threading.Thread(target=log, daemon=True)
    logging_them.start()
    try:
        yield
    finally:
        done.set()
        logging_them.join()
