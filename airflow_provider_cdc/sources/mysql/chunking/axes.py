"""Key columns as axes along which chunks are cut.

An axis is a key column. It defines how values of this column are exchanged with the server. ``read`` is SQL that
returns a stored value as an integer, text or bytes. ``bound`` is an SQL expression whose parameter is such a value. The
server can compare the expression with the column in the column's own type and order, using the index. An axis also
proposes *cuts* between two values. The proposals only affect how even the chunks are, because the server determines the
order, and confirms that it reads each bound as the intended value (``bounds``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.sources.mysql.server.session import Connection, batches, fits, query, quote
from airflow_provider_cdc.sources.mysql.tables.types import is_wide_decimal

_DAY = 86_400_000_000
_LARGEST = 2**63 - 1
"""The largest value of a signed parameter."""
_FIRST_YEAR = 1901
_TYPE = re.compile(r"(?P<name>[a-z]+)(?:\((?P<size>\d+)(?:,(?P<scale>\d+))?\))?(?P<rest>.*)")
_DATE = re.compile(r"(\d+)-(\d+)-(\d+)(?: (\S+))?")
_TIME = re.compile(r"(-?)(\d+):(\d+):(\d+)(?:\.(\d+))?")

Between = tuple[KeyValue, KeyValue, int]
"""A range to cut: the first and the last existing value, and the number of pieces."""


@dataclass(frozen=True)
class Axis:
    """A key column that can be cut.

    ``{}`` stands for the column in ``read``, and for the parameter in ``bound``. Every bound states its type.
    Otherwise, a prepared statement would derive the type of the parameter from the surrounding expression.
    """

    column: str
    read: str
    bound: str

    @property
    def stored(self) -> str:
        """SQL for the column's value."""
        return self.read.format(quote(self.column))

    def between(self, wanted: Sequence[Between]) -> list[list[KeyValue]]:
        """Return, for each range, the values at which to cut, in ascending order. These values are greater than the
        range's first value, and at most its last value. If the first and the last value are equal, there is no cut."""
        return [self.cuts(*point) for point in wanted]

    def cuts(self, first: KeyValue, last: KeyValue, pieces: int) -> list[KeyValue]:
        low, high = self.to_int(first), self.to_int(last)
        if high - low <= pieces:
            points = list(range(low + 1, high + 1))
        else:
            points = [low + (high - low) * piece // pieces for piece in range(1, pieces)]
        return list(dict.fromkeys(self.from_int(point) for point in points))

    def after(self, value: KeyValue) -> KeyValue | None:
        """Return the next greater value. None: there is no greater value, or the greater value does not fit into a
        parameter."""
        with suppress(ValueError, OverflowError):
            successor = self.from_int(self.to_int(value) + 1)
            return successor if not isinstance(successor, int) or successor <= _LARGEST else None
        return None

    def to_int(self, value: KeyValue) -> int:
        """Return the place of a value on a scale on which cuts are evenly spaced."""
        return int(value)

    def from_int(self, place: int) -> KeyValue:
        """Return the value at a place, or the nearest value that can be a cut."""
        return place


@dataclass(frozen=True)
class YearAxis(Axis):
    """Years: 0000, and 1901 to 2155. The type has no years between 0000 and 1901. The server would interpret one or two
    digits as another year."""

    def from_int(self, place: int) -> KeyValue:
        return max(place, _FIRST_YEAR)


@dataclass(frozen=True)
class DecimalAxis(Axis):
    scale: int = 0

    def to_int(self, value: KeyValue) -> int:
        whole, _, fraction = str(value).partition(".")
        return int(whole + fraction.ljust(self.scale, "0"))

    def from_int(self, place: int) -> KeyValue:
        digits = str(abs(place)).rjust(self.scale + 1, "0")
        whole, fraction = digits[: len(digits) - self.scale], digits[len(digits) - self.scale :]
        return f"{'-' if place < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


@dataclass(frozen=True)
class TimeAxis(Axis):
    """Times, possibly longer than a day, counted in the column's smallest fraction of a second (``digits``)."""

    digits: int = 0

    @property
    def unit(self) -> int:
        """Microseconds per step."""
        return int(10 ** (6 - self.digits))

    def to_int(self, value: KeyValue) -> int:
        return _time_to_int(str(value)) // self.unit

    def from_int(self, place: int) -> KeyValue:
        return _time_from_int(place * self.unit, self.digits)


@dataclass(frozen=True)
class DateAxis(TimeAxis):
    """Dates, counted in days since the beginning of year 1. With ``clock``, dates with a time, counted in fractions of
    a second since the beginning of year 1.

    A date that is not in the calendar (2024-02-31, 0000-00-00) is replaced by a nearby date. Dates that are not in the
    calendar can be read, but are never proposed as cuts. Dates before ``since`` are never proposed either, because a
    TIMESTAMP column cannot be compared with them.
    """

    clock: bool = True
    since: str = "0001-01-01 00:00:00.000000"

    def to_int(self, value: KeyValue) -> int:
        match = _DATE.fullmatch(str(value))
        if match is None:
            return 0
        year, month, day = (int(part) for part in match.groups()[:3])
        days = date(year, max(month, 1), 1).toordinal() + day - 1 if year else 0
        return (days * _DAY + _time_to_int(match[4])) // self.unit if self.clock else days

    def from_int(self, place: int) -> KeyValue:
        days, micros = divmod(place * self.unit, _DAY) if self.clock else (place, 0)
        size = (20 + self.digits if self.digits else 19) if self.clock else 10
        since = self.since[:size]
        if days < 1:
            return since
        text = date.fromordinal(days).isoformat()
        return max(since, f"{text} {_time_from_int(micros, self.digits)}" if self.clock else text)


@dataclass(frozen=True)
class BytesAxis(Axis):
    """Binary strings, as big-endian numbers of ``width`` bytes. ``padded``: the column pads values with zeros."""

    width: int = 0
    padded: bool = False

    def cuts(self, first: KeyValue, last: KeyValue, pieces: int) -> list[KeyValue]:
        # Use only the first bytes that differ, because computing with all bytes of a long key would be slow.
        low, high = _as_bytes(first), _as_bytes(last)
        shared = 0
        while shared < min(len(low), len(high)) and low[shared] == high[shared]:
            shared += 1
        size = min(self.width, shared + 8)
        start, stop = (int.from_bytes(value[:size].ljust(size, b"\0"), "big") for value in (low, high))
        points = {start + (stop - start) * piece // pieces for piece in range(1, pieces)}
        values = {point.to_bytes(size, "big").ljust(self.width if self.padded else 0, b"\0") for point in points}
        return sorted(value for value in values | {high} if low < value <= high)


@dataclass(frozen=True)
class TextAxis(Axis):
    """Text of at most ``length`` characters. Only the server knows the order of texts (see ``text_cuts``)."""

    length: int = 0


def axis_of(column: Column) -> Axis | None:
    """Return the axis of a key column. None: no parameter can be compared with this type exactly and in index order.

    ENUM and SET columns have no axis: the server compares them with text by label, and with numbers without using the
    index. FLOAT columns have no axis: in a comparison with such a column, the other value is rounded.
    """
    match = _TYPE.match(column.type)
    if match is None:
        return None
    name, size, scale = match["name"], int(match["size"] or 0), int(match["scale"] or 0)
    if name in ("tinyint", "smallint", "mediumint", "int", "bigint"):
        return Axis(column.name, "{}", f"CAST({{}} AS {'UNSIGNED' if 'unsigned' in match['rest'] else 'SIGNED'})")
    if name == "year":
        return YearAxis(column.name, "{} + 0", "CAST({} AS YEAR)")
    if name == "bit":
        return Axis(column.name, "{} + 0", "CAST({} AS UNSIGNED)")
    if name == "decimal":
        declared_type = f"DECIMAL({size}, {scale})"
        # The inner CAST removes the leading zeros of a ZEROFILL column.
        return DecimalAxis(column.name, f"CAST(CAST({{}} AS {declared_type}) AS CHAR)", _typed(declared_type), scale)
    if name == "date":
        return DateAxis(column.name, _TEXT, _typed("DATE"), clock=False)
    if name == "datetime":
        return DateAxis(column.name, _TEXT, _typed(f"DATETIME({size})"), size)
    if name == "timestamp":
        return DateAxis(column.name, _TEXT, _typed(f"DATETIME({size})"), size, since="1970-01-01 00:00:01.000000")
    if name == "time":
        return TimeAxis(column.name, _TEXT, _typed(f"TIME({size})"), size)
    if name in ("binary", "varbinary"):
        return BytesAxis(column.name, "{}", "CAST({} AS BINARY)", width=size, padded=name == "binary")
    if name in ("char", "varchar") and "charset" in column.details:
        charset, collation = str(column.details["charset"]), str(column.details["collation"])
        return TextAxis(
            column.name,
            "CONVERT({} USING utf8mb4)",
            f"CONVERT({{}} USING {charset}) COLLATE {collation}",
            length=size,
        )
    return None


def key_order(table: Table) -> str | None:
    """Return the first key column if its published values sort like the keys on the server; otherwise None."""
    if table.keyless:
        return None
    column = table.column(table.key[0])
    axis = axis_of(column)
    # Numbers that are published as text do not sort like numbers. Text columns sort by their collation.
    if axis is None or (isinstance(axis, DecimalAxis) and is_wide_decimal(column)):
        return None
    if isinstance(axis, TextAxis) and column.details["collation"] != "utf8mb4_0900_bin":
        return None
    return column.name


_TEXT = "CAST({} AS CHAR)"


def _typed(own: str) -> str:
    # If a TIME parameter has no stated type, a prepared statement interprets its text as a date.
    return f"CAST(CAST({{}} AS CHAR) AS {own})"


def _as_bytes(value: KeyValue) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _time_to_int(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    sign, hours, minutes, seconds, fraction = match.groups()
    micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -micros if sign else micros


def _time_from_int(micros: int, digits: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{'-' if micros < 0 else ''}{hour:02}:{minute:02}:{second:02}"
    return f"{text}.{fraction:06}"[: len(text) + 1 + digits] if digits else text


# Proposes cuts along a text column with any collation. The server sorts the proposals.
#
# Each cut begins with the common prefix of the first and the last key of a cell (a key range), followed by a few more
# characters. The added characters are treated as the digits of a number. The possible digits are the characters that
# were seen in keys, in the order of the collation. Characters that the collation treats as equal count as one digit.
# The proposed cuts are evenly spaced numbers between the first and the last key. The server sorts the proposed cuts,
# drops equal cuts, and keeps the cuts between the two keys. So this module needs no knowledge of collations.


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
