"""What every session sets and checks in the one round trip that prepares it.

Settings are given as start-up options, and read back: a pooler may drop them, or hand out a session that somebody else
has used. A session of a run also makes sure what server it reached, for behind one address there may be several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError, LogGone, SourceReplaced
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session_variables import PINNED, REQUIRED

SETTINGS: Mapping[str, str] = {name: pin.value for name, pin in PINNED.items()}
"""What sessions begin with, every value as the server shows it."""

SET_AT_ONCE = ("transaction_timeout", "synchronous_commit")
"""What `statement` sets, without reading it back. Servers before 17 do not know the first one."""

KEEPALIVE: Mapping[str, str] = {
    # The server notices within minutes that the machine of a session is gone; its kernel's default is two hours, for
    # which it would keep the session's snapshot and slot.
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "15",
    "tcp_keepalives_count": "4",
    # Keepalives rest while sent data waits for its answer. Long enough for a reader that writes elsewhere meanwhile.
    "tcp_user_timeout": "600000",
}
"""Not read back: over a socket of the file system they are 0, and a proxy's connection is not ours."""

_OF_THE_ENVIRONMENT = "'DateStyle', 'TimeZone', 'geqo'"
"""libpq sends what PGDATESTYLE, PGTZ and PGGEQO of this process say, and that outranks the start-up options: these are
set once more."""

OF_THE_SERVER = ("system_identifier", "timeline", "database_oid")
STARTED = "started"
"""When the server was started. Every restart changes it, so it is part of an identity only while there may be none."""
MEANING = "lc_monetary"
"""The setting that says what a value means: which currency ``money`` is in. It is the database's own, and must not
change during a run."""

_ANY = Lsn(0)
"""A position that every server has."""
_NEW_RUN = "trigger a new run, or clear lock_and_record and the tasks after it"


@dataclass(frozen=True)
class RunSettings(ConnectionSettings):
    """Those of a run: every session that is opened with them has reached the server of ``server``, an identity as
    `server.identity` gives it, which has all of ``position``."""

    server: Mapping[str, str] = field(default_factory=dict)
    position: Lsn = _ANY


def of_run(settings: ConnectionSettings, identity: Mapping[str, str], position: Lsn = _ANY) -> RunSettings:
    """``settings`` for one run. ``identity`` may lack the ``slot`` while there is none."""
    return RunSettings(
        **{name: getattr(settings, name) for name in ConnectionSettings.__dataclass_fields__},
        server=dict(identity),
        position=position,
    )


def statement(settings: ConnectionSettings) -> str:
    """The query that prepares a session: one row of text, for `check`.

    It takes no parameters, for COPY takes none, and relies on no setting.
    """
    # Before a run, preflight tells of these, together with all other problems.
    required = (
        {name: requirement.value for name, requirement in REQUIRED.items()} if isinstance(settings, RunSettings) else {}
    )
    pairs = ", ".join(f"('{name}', '{setting}')" for name, setting in {**SETTINGS, **required}.items())
    columns = [
        f"""(SELECT string_agg(concat(w.name, ' is ', pg_catalog.current_setting(w.name, true)), ', ')
        FROM (VALUES {pairs}) w(name, setting)
        WHERE CASE WHEN w.name IN ({_OF_THE_ENVIRONMENT}) THEN pg_catalog.set_config(w.name, w.setting, false)
        ELSE pg_catalog.current_setting(w.name, true) END IS DISTINCT FROM w.setting)""",
        # Servers before 17 do not know it.
        """CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
        THEN pg_catalog.set_config('transaction_timeout', '0', false) END""",
        # Whether a standby has our publication yet changes nothing for us. Set here, so that preflight can see what
        # others have.
        "pg_catalog.set_config('synchronous_commit', 'local', false)",
    ]
    if isinstance(settings, RunSettings):
        slot = settings.server.get("slot", "").replace("'", "''")
        columns += [
            "pg_catalog.pg_is_in_recovery()::text",
            "(SELECT s.system_identifier::text FROM pg_catalog.pg_control_system() s)",
            TIMELINE,
            "(SELECT d.oid::text FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())",
            START,
            f"pg_catalog.current_setting('{MEANING}')",
            "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_flush_lsn()::text END",
            f"""(SELECT r.confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots r
            WHERE r.slot_name = '{slot}' AND r.database = pg_catalog.current_database())""",
        ]
    return f"SELECT {', '.join(columns)}"


# The name of a segment begins with it; the control file would tell that of the last checkpoint.
TIMELINE = """CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.ltrim(pg_catalog.substr(
pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8), '0') END"""


START = "pg_catalog.extract('epoch', pg_catalog.pg_postmaster_start_time())::text"


def check(settings: ConnectionSettings, row: Sequence[str | None]) -> None:
    """Look at what `statement` gave.

    :raises ConfigurationError: a setting is not what the session asked for, or hides damage.
    :raises SourceReplaced: it is another server than the run's, or one that lacks the initial position.
    :raises LogGone: the run's slot is not there, or not where it was.
    :raises ExactnessError: values mean something else now.
    """
    if row[0] and (found := [name for name in REQUIRED if f"{name} is " in row[0]]):
        raise ConfigurationError(
            f"damage would not be noticed: {', '.join(f'{name} is on' for name in found)}",
            where=settings.address,
            hint=f"RESET {found[0]} for the server, this database and this user, and have the damage looked at",
        )
    if row[0]:
        raise ConfigurationError(
            f"the session does not have the settings that it began with: {row[0]}",
            where=settings.address,
            hint="something between here and the server, such as a connection pooler, drops start-up options: connect "
            "to the server itself; or an event trigger ON login of the database (17 and later) sets them: let it leave "
            "out the user of this connection",
        )
    if isinstance(settings, RunSettings):
        _check_server(settings, row[3:])


def timeline(shown: str | None) -> str:
    """The number of what `TIMELINE` gives."""
    return str(int(shown, 16)) if shown else ""


def _check_server(settings: RunSettings, row: Sequence[str | None]) -> None:
    recovering, system, line, database, started, meaning, flushed, confirmed = row
    expected = settings.server
    if recovering != "false":
        raise SourceReplaced(
            "a standby answers now",
            where=settings.address,
            hint="point the connection to the primary that the run began on, and to it alone (no balancer over "
            "replicas), or trigger a new run",
        )
    for name, found in zip(OF_THE_SERVER, (system, timeline(line), database), strict=True):
        if found != expected[name]:
            raise SourceReplaced(
                f"the run began where {name} is {expected[name]}, but a server answers where it is {found}",
                where=f"{settings.address}, {name}",
                hint="point the connection back to the first server, and to it alone, or trigger a new run on this one",
            )
    if started != expected.get(STARTED, started):
        raise SourceReplaced(
            "a copy of the server answers, or the server was restarted meanwhile",
            where=settings.address,
            hint="point the connection to one server alone (no balancer over several), and try again",
        )
    position = settings.position
    if flushed is None or Lsn.parse(flushed) < position:
        raise SourceReplaced(
            f"the log reaches to {flushed} only, and the run began at {position}",
            where=settings.address,
            hint=f"the server lost what it had, or an older copy of it answers: {_NEW_RUN}",
        )
    if (slot := expected.get("slot")) and (confirmed is None or Lsn.parse(confirmed) != position):
        # A copy of the server has its identity, too, but not its slots.
        raise LogGone(
            f"the slot that kept the log for this run is gone, or a copy of the server answers, which never had it: "
            f"there is none at {position}"
            if confirmed is None
            else f"the slot was moved from {position} to {confirmed}: someone else reads from it",
            where=f"replication slot {slot}",
            hint="this package drops it when a task of the run fails for good; otherwise leave the slots that are "
            f"called cdc_… alone, and connect to one server alone. Then {_NEW_RUN}",
        )
    if meaning != expected.get(MEANING, meaning):
        raise ExactnessError(
            f"was {expected[MEANING]!r} when the run began and is {meaning!r}: money is in another currency now",
            where=MEANING,
            hint="leave it alone during a run, and trigger a new run",
        )
