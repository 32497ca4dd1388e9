"""What is wrong with what is asked of a source, whatever the server holds: the same rules for every kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from airflow_provider_cdc.core.options import CONSISTENCIES, UNREPRESENTABLE, TableOptions
from airflow_provider_cdc.errors import Problem

_ONLY = {"lock": "MySQL", "exported": "PostgreSQL", "again": "PostgreSQL"}


def request_problems(patterns: Sequence[str], options: TableOptions, lacks: Collection[str]) -> Iterator[Problem]:
    """The problems of a request.

    :param lacks: the consistencies that this kind of source has not.
    """
    if not patterns:
        yield Problem("tables", "names no table", "list tables as schema.table, for example shop.*")
    offered = ", ".join(name for name in CONSISTENCIES if name not in lacks)
    if options.consistency in lacks:
        only = _ONLY[options.consistency]
        yield Problem("consistency", f"{options.consistency} works on {only} only", f"use one of {offered}")
    elif options.consistency not in CONSISTENCIES:
        yield Problem("consistency", f"{options.consistency!r} is none", f"use one of {offered}")
    if options.unrepresentable not in UNREPRESENTABLE:
        yield Problem(
            "unrepresentable", f"{options.unrepresentable!r} is none", f"use one of {', '.join(UNREPRESENTABLE)}"
        )
