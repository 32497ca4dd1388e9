"""The parameters of a run, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_cdc.core.lake_uri import LakeUri, glob
from airflow_provider_cdc.core.options import CONSISTENCIES, UNREPRESENTABLE, LockPolicy
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.operators.base import lake_of


@dataclass(frozen=True)
class RunParameters:
    """What one run is asked to do. Every value has the type it claims."""

    source_conn_id: str
    tables: list[str]
    target: str
    consistency: str
    unrepresentable: str
    spark_conn_id: str
    conf: dict[str, Any]
    chunk_rows: int
    chunk_pause: float
    lock: LockPolicy
    keep_slot: bool

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> RunParameters:
        """Take the operator's arguments as they are after rendering.

        :raises PreflightError: naming every parameter that is not what it should be.
        """
        problems = [
            Problem(f"parameter {name}", f"{_shown(name, values[name])} is not {wanted.what}", f"give {wanted.example}")
            for name, wanted in _WANTED.items()
            if not wanted.holds(values[name])
        ]
        if problems:
            raise PreflightError(problems)
        return cls(
            source_conn_id=values["source_conn_id"],
            tables=list(values["tables"]),
            target=values["target"],
            consistency=values["consistency"],
            unrepresentable=values["unrepresentable"],
            spark_conn_id=values["spark_conn_id"],
            conf=dict(values["conf"] or {}),
            chunk_rows=values["chunk_rows"],
            chunk_pause=values["chunk_pause"],
            lock=LockPolicy(
                wait_seconds=values["lock_wait_seconds"],
                tries=values["lock_tries"],
                pause_seconds=values["lock_pause_seconds"],
                through_read=values["lock_through_read"],
                slot_wait_seconds=values["slot_wait_seconds"],
            ),
            keep_slot=values["keep_slot"],
        )

    def options(self) -> dict[str, Any]:
        """What the steps after this one need to know, as the manifest holds it."""
        return {
            "chunk_rows": self.chunk_rows,
            "chunk_pause": self.chunk_pause,
            "lock": asdict(self.lock),
            "keep_slot": self.keep_slot,
        }


@dataclass(frozen=True)
class Allowed:
    """What a DAG's author lets its runs name: whoever may trigger a DAG chooses its params, and its tasks have the
    rights of Airflow, not those of that person.

    :param source_conn_ids: ids of connections, ``*`` for any run of characters; None: any connection.
    :param targets: URIs of folders; they and what lies below them is allowed, compared part by part. ``*`` stands for
        any run of characters in a part, ``*`` alone for any target, ``{source}`` for the id of the connection. None:
        any target.
    """

    source_conn_ids: Sequence[str] | None = None
    targets: Sequence[str] | None = None

    def check(self, source_conn_id: str, target: str) -> None:
        """:raises PreflightError: naming what is not allowed."""
        problems = []
        known = self.source_conn_ids
        if known is not None and not any(glob(pattern, source_conn_id) for pattern in known):
            problems.append(_not_allowed("source_conn_id", source_conn_id, known, "source_conn_ids"))
        if self.targets is not None and (lake := _lake(target, source_conn_id)) is not None:
            above = [pattern if pattern == "*" else lake_of(pattern, source_conn_id) for pattern in self.targets]
            if not any(map(lake.matches, above)):
                problems.append(_not_allowed("target", str(lake), above, "targets"))
        if problems:
            raise PreflightError(problems)


def _lake(target: str, source_conn_id: str) -> LakeUri | None:
    # What is no place to write to is refused by whoever uses it.
    try:
        return LakeUri.parse(lake_of(target, source_conn_id))
    except ConfigurationError:
        return None


def _not_allowed(parameter: str, value: str, known: Sequence[str], setting: str) -> Problem:
    return Problem(
        f"parameter {parameter}",
        f"the DAG's author does not allow {value}",
        f"use one of {', '.join(known)}"
        if known
        else f"whoever keeps the DAG has to say what it may use: {setting} "
        "of its SnapshotTaskGroup; of the DAGs that come with the package, in Airflow's configuration, section cdc "
        f"(AIRFLOW__CDC__{setting.upper()})",
    )


def check_conf(given: Mapping[str, Any] | None, known: Collection[str]) -> None:
    """Make sure that each key of a DAG run's conf means something: a misspelt one would be quietly ignored.

    :raises PreflightError: naming those that do not.
    """
    if unknown := sorted(set(given or ()) - set(known)):
        raise PreflightError(
            [
                Problem(f"conf key {key!r}", "the DAG has no such param", f"the params are {', '.join(sorted(known))}")
                for key in unknown
            ]
        )


def _shown(name: str, value: Any) -> str:
    # Where people put secrets, the type has to do.
    return f"a value of type {type(value).__name__}" if value and name in ("target", "conf") else repr(value)


@dataclass(frozen=True)
class _Wanted:
    what: str
    example: str
    holds: Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_text, value))


def _properties(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(map(_text, value)))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_WANTED: Mapping[str, _Wanted] = {
    "source_conn_id": _Wanted("the id of a connection", "text such as cdc_mysql", _text),
    "tables": _Wanted("a list of table names", 'a list such as ["shop.orders", "shop.order_*"]', _texts),
    "target": _Wanted("a URI", "a URI such as file:///data/lake or s3://bucket/lake", _text),
    "consistency": _Wanted(
        f"one of {', '.join(CONSISTENCIES)}", "auto, unless you know better", lambda value: value in CONSISTENCIES
    ),
    "unrepresentable": _Wanted(
        f"one of {', '.join(UNREPRESENTABLE)}", "error, unless you know better", lambda value: value in UNREPRESENTABLE
    ),
    "spark_conn_id": _Wanted("the id of a connection", "text such as spark_default", _text),
    "conf": _Wanted("an object of Spark properties", 'an object such as {"spark.executor.cores": "2"}', _properties),
    "chunk_rows": _Wanted("a whole number above 0", "a number such as 100000", _count),
    "chunk_pause": _Wanted("a number of seconds", "a number such as 0 or 0.5", _seconds),
    "lock_wait_seconds": _Wanted("a whole number of seconds above 0", "a number such as 5", _count),
    "lock_tries": _Wanted("a whole number above 0", "a number such as 12", _count),
    "lock_pause_seconds": _Wanted("a number of seconds", "a number such as 2", _seconds),
    "lock_through_read": _Wanted("true or false", "true or false", lambda value: isinstance(value, bool)),
    "slot_wait_seconds": _Wanted("a whole number of seconds above 0", "a number such as 600", _count),
    "keep_slot": _Wanted("true or false", "true or false", lambda value: isinstance(value, bool)),
}
