"""Sets and checks the settings of every session. One query prepares the session.

Settings are given as start-up options. The query reads them back, because a connection pooler may drop them, or hand
out a session that was used before. A session of a run also checks which server it reached, because several servers may
share one address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError, LogGone, SourceReplaced
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.facts import MEANING, PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session_variables import PINNED, REQUIRED

SETTINGS: Mapping[str, str] = {name: pin.value for name, pin in PINNED.items()}
"""The settings of every session, each value as the server shows it."""

SET_AT_ONCE = ("transaction_timeout", "synchronous_commit")
"""Settings that `statement` sets without reading them back. PostgreSQL before 17 does not have
``transaction_timeout``."""

KEEPALIVE: Mapping[str, str] = {
    # With these settings, the server detects within minutes that the client's machine is unreachable. The default of
    # the server's kernel is two hours. During that time, the server would keep the session's snapshot and slot.
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "15",
    "tcp_keepalives_count": "4",
    # Limits how long sent data may stay unacknowledged, because no keepalives are sent during that time. The limit is
    # long enough for a reader that pauses to write files.
    "tcp_user_timeout": "600000",
}
"""Settings that are not read back. Over a Unix socket these settings are 0, and a proxy may use other values for its
own connection to the server."""

_OF_THE_ENVIRONMENT = "'DateStyle', 'TimeZone', 'geqo'"
"""libpq sends the values of the environment variables PGDATESTYLE, PGTZ and PGGEQO, which override the start-up
options. So `statement` sets these settings again."""

_REQUIRED = ", ".join(f"'{name}'" for name in REQUIRED)

_ANY_SERVER = PostgresFacts()
_ANY = Lsn(0)
"""A position that every server has reached."""
_NEW_RUN = "trigger a new run, or clear the task `lock_and_record` and all tasks after it"


@dataclass(frozen=True)
class RunSettings(ConnectionSettings):
    """The settings of a run's sessions.

    Every session that is opened with these settings checks that it has reached the server with the identity ``server``
    (from `server.identity`), and that the server's log includes ``position``.

    If the log is read from a standby (``log_server``), the slot of ``server`` is on that standby. This server then has
    a physical slot of the same name, which keeps nothing: a copy of the server does not have it.

    :param standby: whether the sessions are those of a standby of this server. They check that the server that answers
        may be one. Only `slots.standbys` finds out whether it replays the log of this server.
    """

    server: PostgresFacts = _ANY_SERVER
    position: Lsn = _ANY
    standby: bool = False


def of_run(settings: ConnectionSettings, facts: PostgresFacts, position: Lsn = _ANY) -> RunSettings:
    """Return ``settings`` for the sessions of one run. Before the run's slot exists, ``facts`` have no ``slot``."""
    return RunSettings(
        **{name: getattr(settings, name) for name in ConnectionSettings.__dataclass_fields__},
        server=facts,
        position=position,
    )


def of_standby(standby: ConnectionSettings, facts: PostgresFacts) -> RunSettings:
    """Return the settings of a ``standby`` for sessions that read tables, in a run on the primary with these facts."""
    return replace(of_run(standby, replace(facts, slot="")), standby=True)


def of_log(settings: ConnectionSettings) -> ConnectionSettings:
    """Return the settings for sessions on the server that has the run's slot: the source, or a standby."""
    standby = settings.log_server
    if standby is None or not isinstance(settings, RunSettings):
        return standby or settings
    return replace(of_run(standby, settings.server, settings.position), standby=True)


def statement(settings: ConnectionSettings) -> str:
    """Return the query that prepares a session. The query returns one row of text, for `check`.

    The query has no parameters, because COPY accepts no parameters. The query works in the same way under all values of
    the settings.
    """
    # Only sessions of a run check the required settings. Before a run, preflight reports them together with all other
    # problems.
    required = (
        {name: requirement.value for name, requirement in REQUIRED.items()} if isinstance(settings, RunSettings) else {}
    )
    pairs = ", ".join(f"('{name}', '{setting}')" for name, setting in {**SETTINGS, **required}.items())
    columns = [
        f"""(SELECT string_agg(concat(w.name, ' is ', pg_catalog.current_setting(w.name, true)), ', ')
        FROM (VALUES {pairs}) w(name, setting)
        WHERE CASE WHEN w.name IN ({_OF_THE_ENVIRONMENT}) THEN pg_catalog.set_config(w.name, w.setting, false)
        WHEN w.name IN ({_REQUIRED}) THEN COALESCE(pg_catalog.current_setting(w.name, true), w.setting)
        ELSE pg_catalog.current_setting(w.name, true) END IS DISTINCT FROM w.setting)""",
        # PostgreSQL before 17 does not have this setting.
        """CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
        THEN pg_catalog.set_config('transaction_timeout', '0', false) END""",
        # A run does not need to wait until standby servers have its publication. Change synchronous_commit here and not
        # by a start-up option, so that preflight can see the value that applies to other sessions.
        "pg_catalog.set_config('synchronous_commit', 'local', false)",
    ]
    if isinstance(settings, RunSettings):
        slot = settings.server.slot.replace("'", "''")
        at, kept = "r.confirmed_flush_lsn::text", "r.database = pg_catalog.current_database()"
        if settings.log_server is not None:
            at, kept = f"'{settings.position}'", "r.slot_type = 'physical'"
        columns += [
            "pg_catalog.pg_is_in_recovery()::text",
            "(SELECT s.system_identifier::text FROM pg_catalog.pg_control_system() s)",
            # The timeline of the last restart point. The standby may replay a later one.
            "(SELECT c.timeline_id::text FROM pg_catalog.pg_control_checkpoint() c)" if settings.standby else TIMELINE,
            "(SELECT d.oid::text FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())",
            START,
            f"pg_catalog.current_setting('{MEANING}')",
            "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_flush_lsn()::text END",
            f"(SELECT {at} FROM pg_catalog.pg_replication_slots r WHERE r.slot_name = '{slot}' AND {kept})",
        ]
    return f"SELECT {', '.join(columns)}"


# The name of a log segment begins with the current timeline. The control file is not used, because it has the timeline
# of the last checkpoint.
TIMELINE = """CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.ltrim(pg_catalog.substr(
pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8), '0') END"""


START = "pg_catalog.extract('epoch', pg_catalog.pg_postmaster_start_time())::text"


def check(settings: ConnectionSettings, row: Sequence[str | None]) -> None:
    """Check the row that `statement` returned.

    :raises ConfigurationError: a setting does not have the requested value, or a setting hides damage.
    :raises SourceReplaced: the server is not the run's server, or the server's log does not include the initial
        position.
    :raises LogGone: the run's slot does not exist, or is at another position.
    :raises ExactnessError: a setting that determines the meaning of values has changed.
    """
    if row[0] and (found := [name for name in REQUIRED if f"{name} is " in row[0]]):
        raise ConfigurationError(
            f"damage would not be detected: {row[0]}",
            where=settings.address,
            hint=f"RESET {found[0]} for the server, for this database and for this user. Then find out what is damaged",
        )
    if row[0]:
        raise ConfigurationError(
            f"the session does not have the settings that it was opened with: {row[0]}",
            where=settings.address,
            hint="if a proxy, such as a connection pooler, drops start-up options, connect to the server directly. "
            "If an event trigger ON login of the database (PostgreSQL 17 and later) changes the settings, "
            "exclude the user of this connection in the trigger",
        )
    if isinstance(settings, RunSettings):
        (_check_standby if settings.standby else _check_server)(settings, row[3:])


def timeline(shown: str | None) -> str:
    """Return the timeline number from a result of `TIMELINE`."""
    return str(int(shown, 16)) if shown else ""


def _is_at(position: Lsn, confirmed: str | None, *, moves: bool) -> bool:
    """Return whether the run's slot is at ``position``. If the run advances its slot (``moves``), the slot may be at a
    later position; `checks.history` checks how far."""
    if confirmed is None:
        return False
    return Lsn.parse(confirmed) >= position if moves else Lsn.parse(confirmed) == position


def _check_server(settings: RunSettings, row: Sequence[str | None]) -> None:
    recovering, system, line, database, started, meaning, flushed, confirmed = row
    expected = settings.server
    if recovering != "false":
        raise SourceReplaced(
            "the connection now reaches a standby",
            where=settings.address,
            hint="point the connection only to the primary that the run began on (no load balancer over replicas), or "
            "trigger a new run",
        )
    for (name, then), found in zip(expected.of_server.items(), (system, timeline(line), database), strict=True):
        if found != then:
            raise SourceReplaced(
                f"this is not the server on which the run began: {name} was {then}, here it is {found}",
                where=f"{settings.address}, {name}",
                hint="point the connection back to the server on which the run began, and only to that server; or "
                "trigger a new run on this server",
            )
    if expected.started is not None and started != expected.started:
        raise SourceReplaced(
            "the connection reaches a copy of the server, or the server was restarted meanwhile",
            where=settings.address,
            hint="point the connection to a single server (no load balancer over several), and retry the task",
        )
    position = settings.position
    if flushed is None or Lsn.parse(flushed) < position:
        raise SourceReplaced(
            f"the server's log ends at {flushed}, before the position {position} at which the run began",
            where=settings.address,
            hint=f"the server has lost data, or the connection reaches an older copy of the server: {_NEW_RUN}",
        )
    _check_slot(settings, confirmed)
    _check_meaning(expected, meaning)


def _check_slot(settings: RunSettings, confirmed: str | None) -> None:
    expected, position = settings.server, settings.position
    if expected.slot and not _is_at(position, confirmed, moves=expected.may_move):
        # A copy of the server has the same identity, but it does not have the slots.
        raise LogGone(
            f"the slot that kept the log since {position} for this run no longer exists, or the connection reaches a "
            f"copy of the server that never had the slot"
            if confirmed is None
            else f"the slot was moved from {position} to {confirmed}: another program reads from it",
            where=f"replication slot {expected.slot}",
            hint="if a task of the run fails permanently, this package itself drops the slot. If no task failed, "
            "make sure that no other program uses or drops slots named cdc_…, and that the connection leads to "
            f"one server only. Then {_NEW_RUN}",
        )


def _check_standby(settings: RunSettings, row: Sequence[str | None]) -> None:
    recovering, system, line, database, _, meaning, _, confirmed = row
    expected, what = settings.server, ""
    if recovering != "true":
        what = "it is no standby: it was promoted, or it never was one"
    elif system != expected.system_identifier or database != expected.database_oid:
        what = f"it has another system identifier or database than the source ({system}, database {database})"
    elif line is None or int(line) > int(expected.timeline):
        what = f"it follows timeline {line}, and the source is on timeline {expected.timeline}"
    if what:
        raise ExactnessError(
            f"the server is not a standby of the source: {what}",
            where=settings.address,
            hint="name a standby that streams from the source, or remove it from `Read.read_conn_ids` and "
            "`Read.log_conn_id`; then trigger a new run",
        )
    _check_slot(settings, confirmed)
    _check_meaning(expected, meaning)


def _check_meaning(expected: PostgresFacts, meaning: str | None) -> None:
    if expected.lc_monetary is not None and meaning != expected.lc_monetary:
        raise ExactnessError(
            f"was {expected.lc_monetary!r} when the run began and is {meaning!r} now, so values of the type money have "
            "another currency",
            where=MEANING,
            hint="do not change this setting during a run; trigger a new run",
        )
