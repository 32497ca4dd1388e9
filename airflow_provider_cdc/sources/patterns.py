"""Which tables the patterns of a run name: the same rules for every kind of database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, Problem

Unmatched = Callable[[str, TableName, list[TableName]], Problem]
"""Makes the problem of a pattern (its text, its two parts) that names no table but, perhaps, these other relations."""


def resolve(
    patterns: Sequence[str],
    kinds: Mapping[TableName, str],
    tables: Iterable[str],
    unmatched: Unmatched,
    *,
    ignore_case: bool = False,
) -> tuple[list[TableName], list[Problem]]:
    """The tables that ``patterns`` name, sorted, each once, and a problem for each pattern that names none.

    A pattern is ``schema.table``; ``*`` stands for any run of characters in either part.

    :param kinds: every relation that could be meant, and its kind.
    :param tables: the kinds that can be copied.
    """
    copied = frozenset(tables)
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    found: set[TableName] = set()
    problems: list[Problem] = []
    for pattern in dict.fromkeys(patterns):
        try:
            wanted = TableName.parse(pattern)
        except ConfigurationError as error:
            problems.append(Problem(repr(pattern), error.message, error.hint))
            continue
        schemas, names = (re.compile(_expression(part), flags) for part in (wanted.schema, wanted.name))
        matches = [name for name in kinds if schemas.fullmatch(name.schema) and names.fullmatch(name.name)]
        matching = [name for name in matches if kinds[name] in copied]
        found.update(name for name in matching if _fits_a_path(name))
        problems += [
            Problem(
                str(name),
                "the copy is a folder <schema>.<table>, and this name makes none that tells both parts",
                "leave the table out, or rename it: no dot in the schema, no slash in either part",
            )
            for name in matching
            if not _fits_a_path(name)
        ]
        if not matching:
            problems.append(unmatched(pattern, wanted, matches))
    return sorted(found), problems


def _fits_a_path(name: TableName) -> bool:
    return "." not in name.schema and "/" not in str(name)


def _expression(part: str) -> str:
    return ".*".join(re.escape(piece) for piece in part.split("*"))
