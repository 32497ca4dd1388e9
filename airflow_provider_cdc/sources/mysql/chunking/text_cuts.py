"""Proposes cuts along a text column with any collation. The server sorts the proposals.

Each cut begins with the common prefix of the first and the last key of a cell (a key range), followed by a few more
characters. The added characters are treated as the digits of a number. The possible digits are the characters that were
seen in keys, in the order of the collation. Characters that the collation treats as equal count as one digit. The
proposed cuts are evenly spaced numbers between the first and the last key. The server sorts the proposed cuts, drops
equal cuts, and keeps the cuts between the two keys. So this module needs no knowledge of collations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.sources.mysql.chunking.axes import Between, TextAxis
from airflow_provider_cdc.sources.mysql.server.session import Connection, query
from airflow_provider_cdc.sources.mysql.server.statement_size import batches, fits

_USUAL = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = 8


class TextCuts:
    """Proposes cuts along one axis. The object collects the characters that occur in the keys that it receives."""

    def __init__(self, connection: Connection, axis: TextAxis) -> None:
        self._connection = connection
        self._axis = axis
        self._seen: set[str] = set()
        self._alphabet: list[str] = []

    def between(self, wanted: Sequence[Between]) -> list[list[KeyValue]]:
        """See ``Axis.between``."""
        texts = [(str(first), str(last)) for first, last, _ in wanted]
        self._learn("".join(first + last + _between_characters(first, last) for first, last in texts))
        questions = []
        for cell, ((first, last), (*_, pieces)) in enumerate(zip(texts, wanted, strict=True)):
            questions += self._fitting(cell, first, last, self._propose(first, last, pieces))
        cut, low, high = (self._axis.bound.format(column) for column in ("v", "f", "l"))
        text = f"VARCHAR({self._axis.length})"
        cuts: list[list[KeyValue]] = [[] for _ in wanted]
        for some in batches(self._connection, questions, _size, len(questions)):
            for cell, value in query(
                self._connection,
                f"SELECT cell, MIN(v) FROM (SELECT cell, v, {cut} AS cut, {low} AS low, {high} AS high "
                f"FROM JSON_TABLE(%s, '$[*]' COLUMNS (cell INT PATH '$[0]', f {text} PATH '$[1]', "
                f"l {text} PATH '$[2]', NESTED PATH '$[3][*]' COLUMNS (v {text} PATH '$'))) AS j) AS typed "
                "WHERE cut > low AND cut <= high GROUP BY cell, cut ORDER BY cell, cut",
                (f"[{','.join(some)}]",),
            ):
                cuts[cell].append(value)
        return cuts

    def _fitting(self, cell: int, first: str, last: str, texts: Sequence[str]) -> list[str]:
        """Return the input of the query for one cell (a key range), as JSON. The input has as many proposed cuts as fit
        into one statement. It is empty if not even one cut fits."""
        while texts:
            question = _json([cell, first, last, texts])
            if fits(self._connection, _size(question)):
                return [question]
            candidates = [text for text in texts if text != last]
            texts = [*candidates[1::2], last] if candidates else []
        return []

    def _learn(self, characters: str) -> None:
        count_before = len(self._seen)
        self._seen |= set(characters)
        # At first, only two keys have been seen, so also use the most common characters. Later, cuts at such guessed
        # characters would be useless.
        guessed = set(_USUAL) if not self._alphabet else set()
        if len(self._seen) == count_before and not guessed:
            return
        wanted_characters = sorted(self._seen | guessed)
        while not fits(self._connection, _size(_json(wanted_characters))):
            wanted_characters = wanted_characters[1::2]
        typed = self._axis.bound.format("c")
        ranked = query(
            self._connection,
            f"SELECT c, DENSE_RANK() OVER (ORDER BY {typed}) "
            "FROM JSON_TABLE(%s, '$[*]' COLUMNS (c VARCHAR(1) PATH '$')) AS j "
            # Leave out characters that the column's character set lacks, because the server would reject them in the
            # parameters of reads.
            f"WHERE CONVERT({typed} USING utf8mb4) COLLATE utf8mb4_bin = c COLLATE utf8mb4_bin",
            (_json(wanted_characters),),
        )
        equal: dict[int, str] = {}
        for character, rank in sorted(ranked, key=lambda row: (row[1], row[0])):
            equal[rank] = equal.get(rank, "") + character
        self._alphabet = list(equal.values())

    def _propose(self, first: str, last: str, pieces: int) -> list[str]:
        rank = {character: place for place, equal in enumerate(self._alphabet, 1) for character in equal}
        low, high = ([rank.get(character, 0) for character in text] for text in (first, last))
        shared = 0
        while shared < min(len(low), len(high)) and low[shared] == high[shared]:
            shared += 1
        base = len(self._alphabet) + 1
        digits = 1
        while base**digits < 16 * pieces and digits < _DIGITS:
            digits += 1
        digits = min(digits, self._axis.length - shared)
        start, stop = (_number(ranks[shared:], base, digits) for ranks in (low, high))
        if stop <= start:
            # Keys may not sort in the order of their characters, for example if the collation has contractions.
            start, stop = 0, base**digits - 1
        points = {start + (stop - start) * piece // pieces for piece in range(1, pieces)}
        # Remove trailing spaces. A CHAR column ignores trailing spaces, so a cut that ends in spaces would be at
        # another place.
        texts = {(first[:shared] + self._text(point, digits)).rstrip(" ") for point in points}
        # Always propose the last key as a cut. Then the range shrinks, whichever collation the column has.
        return sorted(texts - {""} | {last})

    def _text(self, number: int, digits: int) -> str:
        base = len(self._alphabet) + 1
        text = ""
        for exponent in reversed(range(digits)):
            place = number // base**exponent % base
            if place == 0:
                break
            text += self._alphabet[place - 1][0]
        return text


def _between_characters(first: str, last: str) -> str:
    """Return characters between the two characters in which the keys first differ, if these two characters are far
    apart. In a large script, two keys contain only a few of the script's characters."""
    for one, other in zip(first, last, strict=False):
        if one != other:
            low, high = sorted((ord(one), ord(other)))
            step = (high - low) // 64
            points = range(low, high, step) if step >= 4 else ()
            return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
    return ""


def _number(ranks: Sequence[int], base: int, digits: int) -> int:
    number = 0
    for rank in [*ranks[:digits], *[0] * (digits - len(ranks))]:
        number = number * base + rank
    return number


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _size(asked: str) -> int:
    # Each byte may have to be escaped.
    return 2 * len(asked.encode())
