"""What a MySQL source records about its server when it fixes a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_cdc.core.positions.facts import LOG_SERVER, MARK, SERVER_UUID, Facts, Reached
from airflow_provider_cdc.errors import PositionError
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace

_HOSTNAME, _STARTED, _RESETS, _LOG_PLACE = "hostname", "started", "resets", "log_place"
_FIXED, _LAST_SET, _OF_LOG = "fixed.", "last_set.", "log_server."


@dataclass(frozen=True)
class MysqlFacts:
    """The identity of a server, its start, how often RESET was executed since then, and its settings that the log does
    not show.

    ``begun`` is the end of the log before the position was fixed, and ``mark`` is the mark of the position
    (`server.log_history.LogMark`); both are missing in facts without a position. ``fixed`` has settings that only a
    restart changes. ``last_set`` has the times at which other settings were last set, in the server's notation; a time
    is empty if the setting was not set since the start. Facts that earlier versions did not record are None or empty.
    ``may_move`` and ``reached`` are those of `Facts`.

    ``log_server`` has the facts of the server from which the log is read (``log_conn_id``): its ``begun`` is a place
    in its own log, before all transactions that the position lacks. None: the log is read from the source itself.
    """

    server_uuid: str
    hostname: str | None = None
    started: str | None = None
    resets: str | None = None
    begun: LogPlace | None = None
    mark: str = ""
    fixed: Mapping[str, str] = field(default_factory=dict)
    last_set: Mapping[str, str] = field(default_factory=dict)
    may_move: bool = False
    reached: Reached | None = None
    log_server: MysqlFacts | None = None

    @classmethod
    def of(cls, facts: Facts) -> MysqlFacts:
        """Decode recorded facts.

        :raises PositionError: a text is not a place in the log.
        """
        recorded = facts.fields()
        place = recorded.get(_LOG_PLACE, "")
        of_log = _without_prefix(recorded, _OF_LOG)
        return cls(
            server_uuid=facts.server,
            hostname=recorded.get(_HOSTNAME),
            started=recorded.get(_STARTED),
            resets=recorded.get(_RESETS),
            begun=LogPlace.parse(place) if place else None,
            mark=facts.mark,
            fixed=_without_prefix(recorded, _FIXED),
            last_set=_without_prefix(recorded, _LAST_SET),
            may_move=facts.may_move,
            reached=facts.reached,
            log_server=cls.of(Facts(of_log)) if of_log else None,
        )

    def recorded(self) -> Facts:
        """Encode the facts for a record."""
        known = {_HOSTNAME: self.hostname, _STARTED: self.started, _RESETS: self.resets, MARK: self.mark or None}
        place = {} if self.begun is None else {_LOG_PLACE: str(self.begun)}
        of_log = {}
        if (one := self.log_server) is not None:
            known[LOG_SERVER] = f"{one.hostname} ({one.server_uuid})"
            of_log = one.recorded().fields()
        return Facts(
            {SERVER_UUID: self.server_uuid}
            | {name: text for name, text in known.items() if text is not None}
            | {f"{_FIXED}{name}": setting for name, setting in self.fixed.items()}
            | {f"{_LAST_SET}{name}": when for name, when in self.last_set.items()}
            | place
            | {f"{_OF_LOG}{name}": text for name, text in of_log.items()}
        )

    @property
    def of_source(self) -> MysqlFacts:
        """The facts with which the source is checked. If the log is read from another server, the recorded pieces end
        in the log of that server."""
        return self if self.log_server is None else replace(self, may_move=False, reached=None)

    @property
    def of_log(self) -> MysqlFacts:
        """The facts of the server from which the log is read."""
        if self.log_server is None:
            return self
        # The pieces have counted the restarts of the source. If the file in which the run began is gone, assume that
        # this server was restarted once, if at all.
        reached = self.reached and replace(self.reached, incarnation=self.log_server.started or "", restarts=1)
        return replace(self.log_server, may_move=self.may_move, reached=reached)

    @property
    def place(self) -> LogPlace:
        """The same as ``begun``.

        :raises PositionError: the place is not recorded.
        """
        if self.begun is None:
            raise PositionError("the record has no place in the log", hint="trigger a new run")
        return self.begun

    @property
    def needed_from(self) -> LogPlace | None:
        """The place from which the run still needs the log. None: it is not recorded."""
        return LogPlace.parse(self.reached.end) if self.reached is not None else self.begun


def _without_prefix(recorded: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in recorded.items() if name.startswith(prefix)}
