"""The parameters of a run, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.base import CONSISTENCIES, UNREPRESENTABLE, LockPolicy


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
