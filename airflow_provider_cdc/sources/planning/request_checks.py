"""Checks of a request that do not depend on the content of the server. They are the same for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.core.kinds import has, kinds_with, only
from airflow_provider_cdc.core.options.run import CONSISTENCIES, UNREPRESENTABLE, TableOptions
from airflow_provider_cdc.errors import Problem


def request_problems(kind: str, patterns: Sequence[str], options: TableOptions) -> Iterator[Problem]:
    """Yield the problems of a request.

    :param kind: the name of the kind of source.
    """
    if not patterns:
        yield Problem("tables", "names no table", "list tables as schema.table, for example shop.*")
    limited = [name for name in CONSISTENCIES if kinds_with(name)]
    lacks = [name for name in limited if not has(kind, name)]
    offered = ", ".join(name for name in CONSISTENCIES if name not in lacks)
    if options.consistency in lacks:
        yield Problem(
            "consistency", f"{options.consistency} works on {only(options.consistency)} only", f"use one of {offered}"
        )
    elif options.consistency not in CONSISTENCIES:
        yield Problem("consistency", f"{options.consistency!r} is not valid", f"use one of {offered}")
    if options.unrepresentable not in UNREPRESENTABLE:
        yield Problem(
            "unrepresentable", f"{options.unrepresentable!r} is not valid", f"use one of {', '.join(UNREPRESENTABLE)}"
        )
