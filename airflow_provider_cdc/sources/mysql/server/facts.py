"""What a MySQL source records about its server when it fixes a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.core.positions.facts import MARK, SERVER_UUID, Facts, Reached
from airflow_provider_cdc.errors import PositionError
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace

_HOSTNAME, _STARTED, _LOG_PLACE = "hostname", "started", "log_place"
_FIXED, _LAST_SET = "fixed.", "last_set."


@dataclass(frozen=True)
class MysqlFacts:
    """The identity of a server, its start, and its settings that the log does not show.

    ``begun`` is the end of the log before the position was fixed, and ``mark`` is the mark of the position
    (`server.log_history.LogMark`); both are missing in facts without a position. ``fixed`` has settings that only a
    restart changes. ``last_set`` has the times at which other settings were last set, in the server's notation; a time
    is empty if the setting was not set since the start. Facts that earlier versions did not record are None or empty.
    ``may_move`` and ``reached`` are those of `Facts`.
    """

    server_uuid: str
    hostname: str | None = None
    started: str | None = None
    begun: LogPlace | None = None
    mark: str = ""
    fixed: Mapping[str, str] = field(default_factory=dict)
    last_set: Mapping[str, str] = field(default_factory=dict)
    may_move: bool = False
    reached: Reached | None = None

    @classmethod
    def of(cls, facts: Facts) -> MysqlFacts:
        """Decode recorded facts.

        :raises PositionError: a text is not a place in the log.
        """
        recorded = facts.fields()
        place = recorded.get(_LOG_PLACE, "")
        return cls(
            server_uuid=facts.server,
            hostname=recorded.get(_HOSTNAME),
            started=recorded.get(_STARTED),
            begun=LogPlace.parse(place) if place else None,
            mark=facts.mark,
            fixed=_without_prefix(recorded, _FIXED),
            last_set=_without_prefix(recorded, _LAST_SET),
            may_move=facts.may_move,
            reached=facts.reached,
        )

    def recorded(self) -> Facts:
        """Encode the facts for a record."""
        known = {_HOSTNAME: self.hostname, _STARTED: self.started, MARK: self.mark or None}
        place = {} if self.begun is None else {_LOG_PLACE: str(self.begun)}
        return Facts(
            {SERVER_UUID: self.server_uuid}
            | {name: text for name, text in known.items() if text is not None}
            | {f"{_FIXED}{name}": setting for name, setting in self.fixed.items()}
            | {f"{_LAST_SET}{name}": when for name, when in self.last_set.items()}
            | place
        )

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
