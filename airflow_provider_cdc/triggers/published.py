"""The trigger that waits until a copy is published."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.errors import ConfigurationError, PositionError
from airflow_provider_cdc.triggers.position import target_of
from airflow_provider_cdc.triggers.waiting import Answer, WaitingTrigger

if TYPE_CHECKING:
    from airflow_provider_cdc.core.storage.uri import StorageSettings
    from airflow_provider_cdc.lake import LatestCopy

_RUN_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class WantedCopy:
    """The conditions that the copy must meet, as text. An empty text means no condition. See `PublishedSensor`."""

    position: str = ""
    published_after: str = ""
    other_than_run: str = ""

    def check(self) -> None:
        """Check the format of the conditions.

        :raises PositionError: a parameter is malformed.
        """
        self._target()
        self._time()

    def lacking(self, copy: LatestCopy) -> str:
        """Return a text that says which condition ``copy`` does not meet. Empty: the copy meets all conditions.

        :raises ConfigurationError: the position belongs to another kind of database than the copy.
        """
        if copy.run_id == self.other_than_run:
            return "it is still the copy of the given run"
        if (after := self._time()) is not None:
            # Records that earlier versions of this package wrote lack the time of publication.
            if not copy.published_at:
                return "its time of publication is unknown"
            if not datetime.fromisoformat(copy.published_at) > after:
                return f"it was published at {copy.published_at}"
        if (target := self._target()) is not None:
            return _short_of(copy, target)
        return ""

    def _target(self) -> AsOf | None:
        return target_of(self.position, "parameter position") if self.position else None

    def _time(self) -> datetime | None:
        if not self.published_after:
            return None
        where = "parameter published_after"
        point = target_of(self.published_after, where)
        if not isinstance(point, datetime):
            raise PositionError("it is not a time", where=where, hint="write it as 2026-01-31T00:00:00Z")
        return point


def ask(
    target: str,
    table: str,
    wanted: WantedCopy,
    where: str = "",
    columns: Sequence[str] = (),
    storage: StorageSettings | None = None,
) -> Answer:
    """Return whether the latest copy of a table, or of a part of it, meets all conditions.

    :raises CdcError: for the same reasons as `read_latest` and `Wanted.lacking`.
    """
    # The module ``lake`` is imported only here, because it is slow to import and DAG files import this module.
    from airflow_provider_cdc.lake import read_latest

    copy = read_latest(target, table, where=where, columns=columns, storage=storage)
    if copy is None:
        part = " of this part of the table" if where or columns else ""
        return Answer(False, f"{table} has no copy{part} in {target}")
    if lacks := wanted.lacking(copy):
        return Answer(False, f"the latest copy of {table} was made by run {copy.run_id}: {lacks}")
    return Answer(True, "", sensor_result(copy))


def sensor_result(copy: LatestCopy) -> dict[str, Any]:
    """Return the facts about a copy that are the result of the sensor. The list of files is left out, because the list
    may be long."""
    return {
        "table": copy.table,
        "run_id": copy.run_id,
        "path": copy.path,
        "position": copy.position,
        "rows": copy.rows,
        "published_at": copy.published_at,
    }


def _short_of(copy: LatestCopy, target: AsOf) -> str:
    if isinstance(target, datetime):
        when = _asked_for(copy)
        if when is None:
            return "it is exact at a position whose time is unknown"
        return "" if when >= target else f"it is exact as of {when.isoformat()}, or shortly after"
    reached = as_of.parse(copy.position)
    if isinstance(reached, Position) and isinstance(target, type(reached)):
        return reached.shortfall(target)
    raise ConfigurationError(
        f"the copy is exact at {copy.position[:200]}, which cannot be compared with {str(target)[:200]}",
        where=f"parameter position, {copy.path}",
        hint="give a position of the source from which the table is copied",
    )


def _asked_for(copy: LatestCopy) -> datetime | None:
    """Return a time for which it is certain that the copy has everything that was committed up to this time.

    The result is the time in ``as_of``. Without ``as_of``, the result is the time at which the run was due, because the
    run recorded its position after this time.
    """
    if copy.as_of:
        point = as_of.parse(copy.as_of)
        return point if isinstance(point, datetime) else None
    with suppress(ValueError):
        return datetime.strptime(copy.run_id.partition("-")[0], _RUN_TIME).replace(tzinfo=UTC)
    return None


class PublishedTrigger(WaitingTrigger):
    """Fires when the latest copy of a table meets all conditions.

    :param target: URI of the folder in which copies are published.
    :param table: ``schema.table``.
    :param wanted: a `WantedCopy`, as JSON.
    :param where: together with ``columns``, the part of the table, as for `read_latest`.
    :param storage_conn_id: connection to the object store; empty: the settings in the environment.
    """

    arguments = ("target", "table", "wanted", "where", "columns", "storage_conn_id")

    def __init__(
        self,
        *,
        target: str,
        table: str,
        wanted: Mapping[str, str],
        poll_seconds: float,
        outage_seconds: float,
        where: str = "",
        columns: Sequence[str] = (),
        storage_conn_id: str = "",
    ) -> None:
        super().__init__(poll_seconds=poll_seconds, outage_seconds=outage_seconds)
        self.target = target
        self.table = table
        self.wanted = asdict(WantedCopy(**wanted))
        self.where = where
        self.columns = list(columns)
        self.storage_conn_id = storage_conn_id

    async def ask(self) -> Answer:
        # Imported late: the hooks are slow to import, and DAG files import this module.
        from airflow_provider_cdc.hooks.storage import storage_in_event_loop

        storage = await storage_in_event_loop(self.storage_conn_id)
        return await asyncio.to_thread(
            ask, self.target, self.table, WantedCopy(**self.wanted), self.where, self.columns, storage
        )
