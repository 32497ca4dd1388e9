"""Compares literals with columns exactly, and evaluates conditions on rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from difflib import get_close_matches
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.filters.parser import (
    AND,
    BOOLEAN,
    CONSTANT,
    DATE,
    HINT,
    IN,
    IS_NULL,
    IS_TRUE,
    LIKE,
    NOT,
    NUMBER,
    OR,
    TEXT,
    TIMESTAMP,
    Literal,
    Term,
)
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import Problem

# Converts the literals of a condition to the types of the columns that they are compared with.
#
# A literal is converted exactly to a value of the column's published type, or is rejected. It is never rounded or
# truncated. (For a floating-point column, the literal becomes the nearest number of the column's type, as in the
# database.)


PLAIN, LABEL, UUID = "plain", "label", "uuid"
"""The kinds of string columns that can be compared: their values are any text, labels of an enumeration, or UUIDs."""

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
_MOMENT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[ T]{_CLOCK})?\s*(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_TIME = re.compile(_CLOCK, re.ASCII)
_SPAN = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_ORDERED = ("<", "<=", ">", ">=")


class NotComparable(Exception):
    """A literal and a column cannot be compared. The error has a description of the mistake, and the text to write
    instead."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


def problems(term: Term, schema: pa.Schema, texts: Mapping[str, str], place: Callable[[int], str]) -> list[Problem]:
    """Return the problems of a condition that is to be evaluated on rows of ``schema``.

    :param texts: the text columns that can be compared, each with `PLAIN`, `LABEL` or `UUID`.
    :param place: a function that describes the place of a term, given the term's offset.
    """
    all_problems = []
    for leaf in term.leaves():
        if leaf.op == CONSTANT:
            continue
        if leaf.column not in schema.names:
            all_problems.append(Problem(place(leaf.at), *unknown_column(leaf.column, schema.names)))
            continue
        try:
            _check(leaf, schema.field(leaf.column).type, texts.get(leaf.column, ""))
        except NotComparable as error:
            all_problems.append(Problem(place(leaf.at), f"{leaf}: {error}", error.hint))
    return all_problems


def unknown_column(name: str, known: Sequence[str]) -> tuple[str, str]:
    """Return the message and the hint for a column that does not exist."""
    by_fold = {column_name.casefold(): column_name for column_name in known}
    alike = get_close_matches(name.casefold(), by_fold, 1)
    hint = f"did you mean {by_fold[alike[0]]}? Names are case-sensitive" if alike else f"it has {', '.join(known)}"
    return f"the table has no column {name}", hint


def _check(leaf: Term, kind: pa.DataType, text: str) -> None:
    if leaf.op == IS_NULL:
        return
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if leaf.op == IS_TRUE:
        if not pa.types.is_boolean(plain):
            raise NotComparable(f"the column is published as {kind}, which is not a boolean", HINT)
        return
    if pa.types.is_string(plain) or pa.types.is_large_string(plain):
        if not text:
            raise NotComparable(
                "the column is published as the text that the database prints. This text does not sort or compare "
                "like the column's type",
                "for this column, use only IS NULL or IS NOT NULL in `Table.where`, and apply other conditions when "
                "you "
                "read the copy",
            )
        if text != PLAIN and leaf.op in _ORDERED:
            raise NotComparable(f"a {text} can only be tested for equality", "compare the column with =, <> or IN")
    elif leaf.op == LIKE:
        raise NotComparable(
            f"the column is published as {kind}, which is not text",
            "compare the column with =, <, >, IN or BETWEEN",
        )
    for literal in leaf.literals:
        value = value_of(literal, plain)
        if text == UUID and leaf.op != LIKE and not _UUID.fullmatch(value.as_py()):
            raise NotComparable(
                f"{literal} does not have the form in which copies contain a uuid",
                "write the uuid in lower case, with hyphens: 8-4-4-4-12",
            )


def value_of(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    """Return the value of type ``kind`` for ``literal``.

    :raises NotComparable: the type has no such value, or values of the type cannot be compared.
    """
    for holds, convert in _CONVERSIONS:
        if holds(kind):
            return convert(literal, kind)
    raise NotComparable(f"values of {kind} cannot be compared", "for this column, use only IS NULL or IS NOT NULL")


def _whole(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    number = _number(literal)
    low, high = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_unsigned_integer(kind):
        low, high = 0, 2**kind.bit_width - 1
    if number != number.to_integral_value():
        raise NotComparable(
            f"{literal} is not a whole number, but the column has only whole numbers", "write a whole number"
        )
    if not low <= number <= high:
        raise NotComparable(f"{literal} is outside the column's range", f"write a number from {low} to {high}")
    return pa.scalar(int(number), kind)


def _decimal(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    number = _number(literal)
    with localcontext() as context:
        context.prec = 1000
        scaled = number.scaleb(kind.scale)
        if scaled != scaled.to_integral_value():
            raise NotComparable(
                f"{literal} has more digits after the point than the column, which has {kind.scale}",
                "write fewer digits",
            )
        if abs(scaled) >= Decimal(10) ** kind.precision:
            raise NotComparable(
                f"{literal} is outside the column's range",
                f"write at most {format_count(kind.precision - kind.scale, 'digit')} before the decimal point",
            )
        return pa.scalar(scaled.to_integral_value().scaleb(-kind.scale), kind)


def _float(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    number = float(_number(literal))
    if kind.bit_width == 32:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if not math.isfinite(number):
        raise NotComparable(f"{literal} is outside the column's range", f"write a number that a {kind} can hold")
    return pa.scalar(number, kind)


def _truth(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    if literal.kind != BOOLEAN:
        raise NotComparable(f"the column has booleans, and {literal} is not a boolean", "write TRUE or FALSE")
    return pa.scalar(literal.text == "TRUE", kind)


def _text(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    if literal.kind != TEXT:
        raise NotComparable(f"the column has text, and {literal} is not text", f"write '{literal.text}'")
    return pa.scalar(literal.text, kind)


def _day(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    match = _DATE.fullmatch(literal.text) if literal.kind in (TEXT, DATE) else None
    if match is None:
        raise NotComparable(f"{literal} is not a date", "write it as '2026-01-31'")
    return pa.scalar(_date(literal), kind)


def _moment(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    match = _MOMENT.fullmatch(literal.text) if literal.kind in (TEXT, DATE, TIMESTAMP) else None
    zoned = kind.tz is not None
    example = "'2026-01-31 12:00:00Z'" if zoned else "'2026-01-31 12:00:00'"
    if match is None or (literal.kind == DATE and not _DATE.fullmatch(literal.text)):
        raise NotComparable(f"{literal} is not a time", f"write the time as {example}, with up to 6 fractional digits")
    day, hour, minute, second, fraction, zone = match.groups()
    if bool(zone) != zoned:
        what = "has no time zone, but the column's values are points in time" if zoned else "has a time zone"
        raise NotComparable(f"{literal} {what}", f"write the time as {example}")
    value = datetime.combine(_date(Literal(literal.kind, day)), datetime.min.time())
    value += _clock(literal, hour or "0", minute or "0", second or "0", fraction)
    if zone:
        sign = -1 if zone[0] == "-" else 1
        digits = re.sub(r"\D", "", zone).ljust(4, "0")
        if int(digits[:2]) > 15 or int(digits[2:]) > 59:
            raise NotComparable(f"{literal} has an invalid time zone", f"write the time as {example}")
        try:
            value -= sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        except OverflowError:
            raise NotComparable(
                f"{literal} is outside the years 1 to 9999 in UTC", f"write the time as {example}"
            ) from None
        value = value.replace(tzinfo=UTC)
    return pa.scalar(value, kind)


def _time(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    match = _TIME.fullmatch(literal.text) if literal.kind == TEXT else None
    if match is None:
        raise NotComparable(f"{literal} is not a time of day", "write it as '12:00:00'")
    return pa.scalar((datetime.min + _clock(literal, *match.groups())).time(), kind)


def _span(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    match = _SPAN.fullmatch(literal.text) if literal.kind == TEXT else None
    if match is None:
        raise NotComparable(f"{literal} is not a time span", "write it as '-12:00:00'")
    sign, hours, minute, second, fraction = match.groups()
    span = timedelta(hours=int(hours)) + _clock(literal, "0", minute, second, fraction)
    return pa.scalar(-span if sign else span, kind)


def _number(literal: Literal) -> Decimal:
    if literal.kind != NUMBER:
        raise NotComparable(f"the column has numbers, and {literal} is not a number", "write a number without quotes")
    try:
        return Decimal(literal.text)
    except InvalidOperation:
        raise NotComparable(f"{literal} is not a number", "write numbers as 12 or -1.5") from None


def _date(literal: Literal) -> date:
    try:
        return date.fromisoformat(literal.text)
    except ValueError:
        raise NotComparable(f"{literal} is not a valid date", "write a date in the years 1 to 9999") from None


def _clock(literal: Literal, hour: str, minute: str, second: str, fraction: str | None) -> timedelta:
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise NotComparable(f"{literal} is not a time", "write hours up to 23, minutes and seconds up to 59")
    micros = int((fraction or "").ljust(6, "0"))
    return timedelta(hours=int(hour), minutes=int(minute), seconds=int(second), microseconds=micros)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Literal, Any], pa.Scalar]], ...] = (
    (pa.types.is_integer, _whole),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _truth),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_date32, _day),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_time64, _time),
    (pa.types.is_duration, _span),
)


_COMPARE: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.BooleanArray]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def holds(term: Term, rows: pa.RecordBatch, unknown: Mapping[str, Sequence[int]] | None = None) -> pa.BooleanArray:
    """Return for each row whether the condition is true; False if it is false or unknown.

    :param unknown: for each column, the rows whose value counts as null, even if the array has a value for such a row.
    """
    columns = {name: _column(rows, name, (unknown or {}).get(name, ())) for name in term.columns}
    return pc.fill_null(_evaluate(term, columns, rows.num_rows), False)


def _column(rows: pa.RecordBatch, name: str, unknown: Sequence[int]) -> pa.Array:
    column = rows.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if len(unknown):
        mask = np.zeros(rows.num_rows, np.bool_)
        mask[list(unknown)] = True
        column = pc.if_else(pa.array(mask), pa.scalar(None, column.type), column)
    return column


def _evaluate(term: Term, columns: Mapping[str, pa.Array], rows: int) -> pa.BooleanArray:
    if term.op in (AND, OR):
        both = pc.and_kleene if term.op == AND else pc.or_kleene
        return reduce(both, [_evaluate(operand, columns, rows) for operand in term.terms])
    if term.op == NOT:
        return pc.invert(_evaluate(term.terms[0], columns, rows))
    if term.op == CONSTANT:
        return pa.repeat(pa.scalar(term.literals[0].text == "TRUE"), rows)
    column = columns[term.column]
    if term.op == IS_NULL:
        return column.is_null()
    if term.op == IS_TRUE:
        return column
    if term.op == LIKE:
        return pc.match_substring_regex(column, pattern=expression(term.literals[0].text, term.escape))
    values = [value_of(literal, column.type) for literal in term.literals]
    if term.op != IN:
        return _COMPARE[term.op](column, values[0])
    if pa.types.is_floating(column.type) or len(values) == 1:
        # Do not use is_in, which treats two NaNs as equal, and 0.0 and -0.0 as different.
        return reduce(pc.or_kleene, [pc.equal(column, value) for value in values])
    matches = pc.is_in(column, value_set=pa.array([value.as_py() for value in values], column.type))
    # For a null, the result of IN is unknown, but is_in returns false.
    return pc.if_else(column.is_valid(), matches, pa.scalar(None, pa.bool_()))


def expression(pattern: str, escape: str) -> str:
    """Return the regular expression (RE2) of a LIKE pattern. The expression matches the whole text, including line
    breaks."""
    parts = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            parts.append(_literally(next(letters)))
        elif letter == "%":
            parts.append(".*")
        elif letter == "_":
            parts.append(".")
        else:
            parts.append(_literally(letter))
    return f"(?s)\\A(?:{''.join(parts)})\\z"


def _literally(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):X}}}"
