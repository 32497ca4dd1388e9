"""Resolves the table patterns of a run, with the same rules for every kind of database.

A pattern is ``schema.table``; ``*`` stands for any run of characters in either part. A part in double quotes is taken
literally, including dots and stars (``"my.schema".orders``). In such a part, two double quotes stand for one. A pattern
that begins with ``!`` excludes tables that earlier patterns matched: ``shop.*``, ``!shop._*_gho``.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, Problem

Unmatched = Callable[[str, TableName, list[TableName]], Problem]
"""A function that makes the problem for a pattern that matches no table. Its arguments are the text of the pattern, the
two parts of the pattern, and the other relations that the pattern matches."""

NOTHING_LEFT = Problem("tables", "the patterns with ! exclude every table", "exclude fewer tables")

_NOT = "!"
_SIMILAR = 0.75
"""A pattern is suggested only if its similarity, as measured by `difflib`, is at least this number. So about one letter
in four may differ."""
_QUOTED = re.compile(r'"((?:[^"]|"")+)"(?=\.|\Z)', re.DOTALL)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern. For each part of a table's name, the pattern has a list of texts. A name matches if it consists
    of these texts, in the same order, with any characters in between."""

    schema: tuple[str, ...]
    name: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse ``schema.table``, without a leading ``!``.

        :raises ConfigurationError: the text does not have this form.
        """
        schema, end = _part(text, 0, text.find("."))
        name, end = _part(text, end + 1, len(text))
        if end != len(text) or "" in ("*".join(schema), "*".join(name)):
            raise ConfigurationError(
                f"{text!r} does not name a table", hint="write the table as schema.table, for example shop.orders"
            )
        return cls(schema, name)

    @property
    def text(self) -> TableName:
        """The two parts of the pattern, without quotes."""
        return TableName("*".join(self.schema), "*".join(self.name))

    def matches(self, name: TableName, fold: Callable[[str], str] = str) -> bool:
        """Return whether the pattern matches a table's name. ``fold`` returns the same text for all texts that count as
        equal."""
        return all(
            _fits([fold(piece) for piece in pieces], fold(part))
            for pieces, part in ((self.schema, name.schema), (self.name, name.name))
        )


def exactly(name: TableName) -> str:
    """Return the pattern that matches this table and no other."""
    odd = "." in name.schema or "*" in str(name) or name.schema[:1] in (_NOT, '"') or name.name[:1] == '"'
    return ".".join('"' + part.replace('"', '""') + '"' for part in (name.schema, name.name)) if odd else str(name)


def resolve(
    patterns: Sequence[str],
    kinds: Mapping[TableName, str],
    tables: Iterable[str],
    unmatched: Unmatched,
    *,
    ignore_case: bool = False,
) -> tuple[list[TableName], list[Problem]]:
    """Return the tables that ``patterns`` match, sorted and without duplicates, and a problem for each pattern that
    matches none.

    A pattern with ``!`` that does not exclude any table is only logged, because it may be meant for tables that exist
    only at certain times.

    :param kinds: every relation that a pattern could match, and its kind.
    :param tables: the kinds of relations that can be copied.
    """
    copied = frozenset(tables)
    fold = _lower if ignore_case else str
    names: set[TableName] = set()
    problems: dict[Problem, None] = {}
    named = False
    for text in patterns:
        excludes = text.startswith(_NOT)
        try:
            pattern = Pattern.parse(text.removeprefix(_NOT))
        except ConfigurationError as error:
            problem = Problem(repr(text), error.message, error.hint)
            problems[_suggesting(problem, _alike(text, kinds, copied))] = None
            continue
        if excludes:
            left_out = {name for name in names if pattern.matches(name, fold)}
            if not left_out:
                _log.info(
                    "The pattern %s has no effect: no earlier pattern matches a table that this pattern excludes.", text
                )
            names -= left_out
            continue
        matches = [name for name in kinds if pattern.matches(name, fold)] or _read_otherwise(text, kinds, fold)
        matching = {name for name in matches if kinds[name] in copied}
        named = named or bool(matching)
        names |= matching
        if not matching:
            problem = unmatched(text, pattern.text, matches)
            # Suggest other names only if the pattern matches nothing. A pattern that matches a view or a partition is
            # not misspelt.
            problems[problem if matches else _suggesting(problem, _alike(text, kinds, copied))] = None
    if not names and any(text.startswith(_NOT) for text in patterns):
        if named:
            problems[NOTHING_LEFT] = None
        elif not problems:
            what = "every pattern excludes tables, and none includes any"
            problems[Problem("tables", what, "begin with the tables to copy, for example shop.*")] = None
    for name in sorted(names):
        if not _fits_a_path(name):
            problem = Problem(
                str(name),
                "the folder of a copy has the name <schema>.<table>. For this table, readers of the folder's name "
                "could not tell the schema from the table",
                f"exclude the table ({_NOT}{exactly(name)}), or rename the table or its schema: a schema's name must "
                "not contain a dot or a slash, and a table's name must not contain a slash",
                # If the name of the schema contains a dot, `schema.table` may also be the name of another table.
                "" if "." in name.schema else str(name),
            )
            problems[problem] = None
    return sorted(filter(_fits_a_path, names)), list(problems)


def _suggesting(problem: Problem, alike: str) -> Problem:
    return replace(problem, hint=f"did you mean {alike}? Otherwise {problem.hint}") if alike else problem


def _alike(text: str, kinds: Mapping[TableName, str], copied: Collection[str]) -> str:
    """Return the pattern that the user probably meant. The given pattern ``text`` matches no table. Return an empty
    text if no similar pattern exists."""
    names = [name for name, kind in kinds.items() if kind in copied and _fits_a_path(name)]
    if "." not in text:
        meant = {name.name: exactly(name) for name in names}
    elif "*" not in text:
        meant = {str(name): exactly(name) for name in names}
    else:
        # If the table part contains a star, a misspelling in this part cannot be recognised. So compare only the
        # schema.
        rest = text[text.index(".") :]
        meant = {f"{name.schema}{rest}": f"{name.schema}{rest}" for name in names if f"{name.schema}{rest}" != text}
    by_fold = defaultdict(list)
    for word in sorted(meant):
        by_fold[word.casefold()].append(word)
    for folded in get_close_matches(text.casefold(), by_fold, 1, _SIMILAR):
        (word,) = get_close_matches(text, by_fold[folded], 1, 0)
        return meant[word]
    return ""


def _part(text: str, start: int, end: int) -> tuple[tuple[str, ...], int]:
    """Return the pieces and the end of the part that begins at ``start``. If the part is not quoted, its end is
    ``end``."""
    if quoted := _QUOTED.match(text, start):
        return (quoted[1].replace('""', '"'),), quoted.end()
    return tuple(text[start : max(end, start)].split("*")), max(end, start)


def _read_otherwise(text: str, kinds: Iterable[TableName], fold: Callable[[str], str]) -> list[TableName]:
    """Return the relations that a pattern with several dots would match if another dot separated the schema from the
    table."""
    dots = [place for place, letter in enumerate(text) if letter == "."][1:]
    other_readings = [Pattern(tuple(text[:dot].split("*")), tuple(text[dot + 1 :].split("*"))) for dot in dots]
    return [name for name in kinds if any(other.matches(name, fold) for other in other_readings)]


def _fits(pieces: Sequence[str], text: str) -> bool:
    """Return whether ``text`` consists of the pieces, with any characters between them. Each piece is matched at its
    first possible place. This leaves the most room for the later pieces, so no backtracking is needed."""
    if len(pieces) == 1:
        return pieces[0] == text
    first, *middle, last = pieces
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _lower(text: str) -> str:
    """Return ``text`` in lower case. Each letter is converted on its own, and a letter whose lower case has two letters
    is not converted."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def _fits_a_path(name: TableName) -> bool:
    return "." not in name.schema and "/" not in str(name)
