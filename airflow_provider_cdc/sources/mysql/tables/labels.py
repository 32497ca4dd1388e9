"""Labels of ENUM and SET columns"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations, product

import pymysql

from airflow_provider_cdc.core.tables.table import Column, TableName
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, quote
from airflow_provider_cdc.sources.mysql.tables.charsets import bytes_per_character, has_gaps

# Parse declared types, such as ``decimal(10,2) unsigned`` and ``enum('a','b')``.


_DECLARED = re.compile(r"(\w+)(?:\((.*)\))?((?: unsigned| zerofill)*)", re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_LABELS = re.compile(rf"{_LABEL.pattern}(,{_LABEL.pattern})*", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}


@dataclass(frozen=True)
class Declared:
    """A parsed type: ``decimal(10,2) unsigned`` is ``decimal``, ``10,2``, True, False."""

    name: str
    arguments: str
    unsigned: bool
    zerofill: bool

    def number(self, index: int, default: int) -> int:
        """Return the argument at ``index`` as a number; ``default`` if there are fewer arguments."""
        parts = self.arguments.split(",") if self.arguments else []
        return int(parts[index]) if index < len(parts) else default


@lru_cache(maxsize=1024)
def parse(text: str) -> Declared | None:
    """Parse a type as information_schema shows it. None: the text has another form."""
    match = _DECLARED.fullmatch(text)
    if match is None:
        return None
    return Declared(match[1].lower(), match[2] or "", "unsigned" in match[3], "zerofill" in match[3])


def are_labels(arguments: str) -> bool:
    """Whether all members are quoted. If the bytes of a member are not text, the server shows the bytes: ``x'ff'``."""
    return _LABELS.fullmatch(arguments) is not None


def labels(arguments: str) -> tuple[str, ...]:
    """Return the members of ``'a','b''c'``, without the quoting of information_schema."""
    return tuple(
        _ESCAPED.sub(lambda escaped: "'" if escaped[1] is None else _ESCAPES.get(escaped[1], escaped[1]), label[1])
        for label in _LABEL.finditer(arguments)
    )


# Finds labels of an ENUM that the server may take for each other.
#
# Without strict mode, the server accepts labels that are equal in the collation of the column, such as 'a' and 'A'. A
# number can still select each of them, but for a text, the server always takes the first one.


_PLAIN = re.compile(r"[ -~\u0370-\u04ff\u4e00-\u9fff]")
"""Characters that no collation takes for another character, except for the other case of the same letter and except
for `_ALIKE`. Each other character may be equal to any text, also to none."""
_ALIKE = str.maketrans("jvw", "iuu")
"""Letters that some collations take for each other, such as utf8mb4_roman_ci."""

_MOST_PAIRS = 1_000_000


def may_be_alike(labels: Sequence[str]) -> bool:
    """Return whether any two of the labels may be equal in some collation."""
    parts = [_plain_parts(label) for label in labels]
    known = [one for one in parts if len(one) == 1]
    others = [one for one in parts if len(one) > 1]
    if len({one[0] for one in known}) < len(known) or len(others) * len(parts) > _MOST_PAIRS:
        return True
    return any(_fit(one, other) for one, other in chain(product(others, known), combinations(others, 2)))


def _plain_parts(label: str) -> list[str]:
    """Split a label at the characters that may be equal to any text."""
    folded = label.casefold().translate(_ALIKE).rstrip(" ")
    marked = "".join(one if _PLAIN.match(one) and _is_whole(one) else "\0" for one in folded)
    return marked.split("\0")


def _is_whole(character: str) -> bool:
    return unicodedata.normalize("NFKD", character) == character


def _fit(one: list[str], other: list[str]) -> bool:
    ends = [(one[0], other[0], len(one), len(other)), (one[-1][::-1], other[-1][::-1], len(one), len(other))]
    # A text of one part is known as a whole, so it is not the beginning of a longer one.
    return all(
        (first.startswith(second) and count_of_second > 1) or (second.startswith(first) and count_of_first > 1)
        for first, second, count_of_first, count_of_second in ends
    )


# Read the labels (members) of enum and set columns that the server's catalog cannot show.
#
# The catalog stores types in utf8mb3. The catalog shows ``?`` for a character beyond U+FFFF, and for a code without a
# character. The table itself stores the real labels. A recursive query can show these labels without reading any row,
# because the columns of such a query have the types of its first part. Here, this is the type of the enum or set
# column. A number that is assigned to an enum or set becomes the member, or the set of members, with that number.


LABELS = "labels"
"""The key in ``Column.details`` for a JSON array of the labels, in order."""

_DENIED = frozenset({1044, 1142, 1143})
_FALLBACKS = frozenset({"?", "\ufffd"})


def may_hide_labels(column: Column) -> bool:
    """Whether the server may show a replacement character in the type of ``column``."""
    declared = parse(column.type)
    if declared is None or declared.name not in ("enum", "set") or not are_labels(declared.arguments):
        return False
    charset = str(column.details.get("charset", ""))
    return bool(_FALLBACKS & {*declared.arguments}) and (bytes_per_character(charset) == 4 or has_gaps(charset))


def with_labels(connection: Connection, name: TableName, columns: Iterable[Column]) -> list[Column]:
    """Return ``columns`` of the table ``name``, with the labels in the details of columns whose type may hide labels.

    The details of a column stay unchanged if this user may not read the column, or if a label contains a code without a
    character.
    """
    return [_with_labels(connection, name, column) if may_hide_labels(column) else column for column in columns]


def _with_labels(connection: Connection, name: TableName, column: Column) -> Column:
    declared = parse(column.type)
    assert declared is not None  # `may_hide_labels` has checked it
    count = len(labels(declared.arguments))
    numbers = [1 << place if declared.name == "set" else place + 1 for place in range(count)]
    charset = column.details.get("charset")
    try:
        rows = query(
            connection,
            f"WITH RECURSIVE members AS (SELECT t.{quote(column.name)} AS label, CAST(0 AS UNSIGNED) AS number "
            f"FROM (SELECT 1) AS one LEFT JOIN {quote(name.schema, name.name)} AS t ON FALSE "
            "UNION ALL SELECT numbers.number, numbers.number FROM members "
            "JOIN JSON_TABLE(%s, '$[*]' COLUMNS (number BIGINT UNSIGNED PATH '$')) AS numbers "
            "WHERE members.number = 0) "
            "SELECT number, CAST(CONVERT(label USING utf8mb4) AS BINARY), "
            f"CAST(CONVERT(CONVERT(label USING utf8mb4) USING {charset}) AS BINARY) = CAST(label AS BINARY) "
            "FROM members WHERE number > 0",
            (json.dumps(numbers),),
        )
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if error.args[0] in _DENIED:
            return column
        raise
    found = {int(number): bytes(label).decode() for number, label, alike in rows if alike}
    if found.keys() != {*numbers}:
        return column
    return replace(column, details={**column.details, LABELS: json.dumps([found[number] for number in numbers])})
