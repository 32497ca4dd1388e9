"""Check whether an expression has the same value for a stored row in every session.

The expression is evaluated from its leaves. Each part gets its MySQL type and the properties in which sessions could
differ (``values.Value``). Each function accepts only arguments for which no session setting changes its result.
Unknown parts are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.sources.mysql.tables.labels import parse as parse_type
from airflow_provider_cdc.sources.mysql.tables.virtual import functions
from airflow_provider_cdc.sources.mysql.tables.virtual.functions import (
    BINARY,
    BYTES,
    CAST,
    COLUMN,
    COMPARED,
    CONNECTION_CHARSET,
    CONVERTED,
    DATES,
    DIFFERENCE,
    DOUBLE,
    INT,
    JSON,
    LITERAL,
    MISLABELLED,
    MOMENTS,
    NULL,
    NUMBERS,
    SESSION,
    ZONE,
    Dependent,
    Value,
    as_number,
    check_text,
    is_literal_of,
    joined,
    letters,
    merged,
    of_bytes,
    of_column,
    of_json,
    of_moments,
    of_numbers,
    promoted,
    session_text,
)
from airflow_provider_cdc.sources.mysql.tables.virtual.grammar import Node, NotUnderstood, parse

# Functions and operators whose session independence depends on more than the types of their arguments.


_DATE_OF_FORMAT = frozenset(["%Y-%m-%d", "%Y-%m-01", "%Y-01-01"])
_SIZES = re.compile(r"\((\d+)")


def _quotient(node: Node, values: Sequence[Value]) -> Value:
    numbers = [as_number(value) for value in values]
    kinds = {promoted([value]).kind for value in numbers if value.kind != "null"}
    if "double" not in kinds or any(value.scaled for value in numbers):
        raise Dependent("the digits of a quotient depend on div_precision_increment")
    return DOUBLE


def _dates(values: Sequence[Value]) -> None:
    of_moments("year", values)


def _extract(node: Node, values: Sequence[Value]) -> Value:
    unit = node.note
    if unit not in functions.UNITS or unit == "week":
        raise Dependent("the number of a week depends on default_week_format")
    return of_moments("year" if unit in ("year", "quarter", "month", "year_month", "day") else "hour", values)


def _timestampdiff(node: Node, values: Sequence[Value]) -> Value:
    if node.note not in functions.UNITS:
        raise Dependent(CONVERTED)
    _dates(values)
    return INT


def _week(node: Node, values: Sequence[Value]) -> Value:
    # Without a mode argument, the server uses default_week_format. In the expression, the server prints the mode that
    # it used when the table was created.
    if len(values) != 2 or node.arguments[1].kind != "number":
        raise Dependent("the number of a week depends on default_week_format")
    _dates(values[:1])
    return INT


def _interval(node: Node, values: Sequence[Value]) -> Value:
    when, amount = values
    if node.note not in functions.UNITS or amount.kind not in ("int", "decimal") or amount.wraps:
        raise Dependent(CONVERTED)
    _dates([when])
    if when.kind not in DATES:
        raise Dependent(CONVERTED)
    by_days = node.note in ("day", "week", "month", "quarter", "year", "year_month")
    digits = 6 if "microsecond" in node.note or amount.kind == "decimal" else when.digits
    return Value("date") if when.kind == "date" and by_days else Value("datetime", digits=digits)


def _last_day(node: Node, values: Sequence[Value]) -> Value:
    _dates(values)
    return Value("date")


def _makedate(node: Node, values: Sequence[Value]) -> Value:
    of_numbers(INT, values)
    return Value("date")


def _timediff(node: Node, values: Sequence[Value]) -> Value:
    if len({value.kind for value in values}) > 1:
        raise Dependent(CONVERTED)
    of_moments("hour", values)
    return Value("time", digits=max(value.digits for value in values))


def _sec_to_time(node: Node, values: Sequence[Value]) -> Value:
    if [value.kind for value in values] != ["int"] or values[0].wraps:
        raise Dependent(CONVERTED)
    return Value("time")


def _format(node: Node, values: Sequence[Value]) -> Value:
    text = node.arguments[1]
    plain = re.sub("%[%" + "".join(functions.DATE_FORMATS) + "]", "", text.name)
    if text.kind != "text" or "%" in plain or not plain.isascii():
        raise Dependent("names of days and months depend on lc_time_names")
    (of_moments)("year" if node.name == "date_format" else "hour", values[:1])
    if text.name in _DATE_OF_FORMAT and not values[0].odd and node.name == "date_format":
        return Value("date", as_text=True)
    return session_text()


def _trim(node: Node, values: Sequence[Value]) -> Value:
    first = values[0]
    spaces = len(values) == 1 or values[1].literal == " "
    if first.padded and spaces and node.note != "leading" and node.name != "ltrim":
        # Trimming removes the padding.
        first = replace(first, padded=False)
    return replace(joined([first, *values[1:]]), literal=None)


def _collate(node: Node, values: Sequence[Value]) -> Value:
    text = joined(values)
    if text.kind != "text" or text.collation == SESSION:
        raise Dependent(CONNECTION_CHARSET)
    return replace(text, collation=COLUMN)


def _convert(node: Node, values: Sequence[Value]) -> Value:
    return _as_text(values[0], node.note)


def _as_text(value: Value, charset: str) -> Value:
    check_text(value)
    if charset == "binary":
        return of_bytes(BYTES, [value])
    if value.kind == "bytes":
        raise Dependent("the result of casting bytes that are not text depends on sql_mode")
    # The collation is the default of the character set. For utf8mb4, a session can set this default
    # (default_collation_for_utf8mb4).
    collation = CAST if charset in ("", "utf8mb4") else COLUMN
    ascii_only = value.ascii or value.is_number or value.is_moment
    return Value("text", collation=collation, ascii=ascii_only, caseless=value.is_number or value.caseless)


def _cast(node: Node, values: Sequence[Value]) -> Value:
    value = values[0]
    name, _, charset = node.note.partition(" charset ")
    kind = re.split(r"[ (]", name)[0]
    size = _SIZES.search(name)
    digits = int(size[1]) if size else 0
    if name.endswith(" array"):
        raise Dependent("it creates an array")
    if kind in ("char", "nchar", "binary"):
        return _as_text(value, "binary" if kind == "binary" else "utf8mb3" if kind == "nchar" else charset)
    if kind in ("signed", "unsigned", "decimal", "double", "float", "real", "year"):
        of_numbers(INT, values)
        if kind == "year" and value.kind not in ("int", "null"):
            raise Dependent(CONVERTED)
        number = {"signed": "int", "unsigned": "int", "year": "int", "decimal": "decimal"}.get(kind, "double")
        return Value(number, unsigned=kind in ("unsigned", "year"))
    if kind == "json":
        return of_json(JSON, values)
    if kind not in MOMENTS:
        raise Dependent(f"the expression casts to {name.upper()}, and the result may depend on the session")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    if kind in DATES and is_literal_of("datetime", value):
        return Value(kind)
    accepted = {"date": DATES, "datetime": DATES, "time": {"datetime", "time"}}[kind]
    if value.kind not in accepted or value.odd or value.as_text or (kind != "date" and value.digits > digits):
        raise Dependent(CONVERTED)
    return Value(kind, digits=digits)


def _json_value(node: Node, values: Sequence[Value]) -> Value:
    of_json(JSON, values)
    kind = re.split(r"[ (]", node.note)[0]
    if kind in MOMENTS or any(value.is_moment for value in values):
        raise Dependent(CONVERTED)
    found = _cast(node, [JSON])
    return replace(found, collation=CAST) if found.kind == "text" else found


SPECIAL_FORMS: Mapping[str, Callable[[Node, Sequence[Value]], Value]] = {
    "/": _quotient,
    "cast": _cast,
    "convert": _convert,
    "collate": _collate,
    "extract": _extract,
    "timestampdiff": _timestampdiff,
    "datediff": _timestampdiff,
    "week": _week,
    "yearweek": _week,
    "interval +": _interval,
    "interval -": _interval,
    "last_day": _last_day,
    "makedate": _makedate,
    "timediff": _timediff,
    "sec_to_time": _sec_to_time,
    "date_format": _format,
    "time_format": _format,
    "trim": _trim,
    "rtrim": _trim,
    "json_value": _json_value,
    "st_x": lambda node, values: _geometric(DOUBLE, values),
    "st_y": lambda node, values: _geometric(DOUBLE, values),
    "st_latitude": lambda node, values: _geometric(DOUBLE, values),
    "st_longitude": lambda node, values: _geometric(DOUBLE, values),
    "st_srid": lambda node, values: _geometric(INT, values),
    "st_astext": lambda node, values: _geometric(session_text(), values),
    "st_geohash": lambda node, values: _geometric(session_text(), values[:1]),
    "space": lambda node, values: of_numbers(session_text(caseless=True), values),
}


def _geometric(result: Value, values: Sequence[Value]) -> Value:
    if [value.kind for value in values] != ["geometry"]:
        raise Dependent("it creates a geometry")
    return result


# Check that comparisons and searches have the same result in every session.


_OF_PADDED = frozenset("= <=> <> != < > <= >= in between strcmp field".split()) | {"case of"}
_KNOWN_CHARSETS = (COLUMN, BINARY, LITERAL, CAST)
_OF_DOCUMENTS = frozenset("= <=> <> != < > <= >=".split())


def check_comparable(name: str, values: Sequence[Value]) -> Value:
    """Return the result of the comparison ``name``, a number.

    Two numbers, or a text and a number, are compared as numbers. Texts are compared by a collation, which must come
    from a column or from JSON. Dates can be compared with dates, and with literals that mean the same date in every
    session.

    :raises Dependent: the result may differ between sessions.
    """
    known = [value for value in values if value.kind != "null"]
    for value in known:
        if value.wraps or value.kind == "geometry":
            check_text(value)
        if value.kind == "timestamp":
            raise Dependent(ZONE)
    moments = [value for value in known if value.is_moment]
    if moments:
        _check_moments(known, moments)
        return INT
    texts = [value for value in known if value.kind in ("text", "bytes")]
    if texts and name in ("greatest", "least", "strcmp"):
        # These functions convert numbers to texts if one argument is a text.
        texts = known
    documents = [value for value in known if value.kind == "json"]
    if documents and (name not in _OF_DOCUMENTS or any(value.padded or value.kind == "bytes" for value in texts)):
        raise Dependent(COMPARED)
    if documents and any(value.collation != LITERAL and value.collation != COLUMN for value in texts):
        raise Dependent(COMPARED)
    if len(texts) > 1 and not documents:
        _check_collation(name, texts)
    return INT


def check_found(name: str, values: Sequence[Value]) -> Value:
    """Return the result of a search or replacement, such as LIKE, LOCATE or REGEXP_REPLACE.

    :raises Dependent: sessions may find different texts.
    """
    text = joined(values)
    if name == "like" and len(values) == 2 and values[1].literal is None:
        raise Dependent("without ESCAPE, the meaning of a backslash depends on sql_mode (NO_BACKSLASH_ESCAPES)")
    if not any(value.collation == COLUMN for value in values if value.kind == "text"):
        # Without a column's collation, texts that are made from numbers or bytes are compared by the connection's
        # collation.
        only_bytes = all(value.kind == "bytes" for value in values)
        if not only_bytes and text.collation != BINARY:
            raise Dependent(COMPARED)
    if text.kind == "bytes" and any(value.kind != "bytes" for value in values):
        raise Dependent(COMPARED)
    return (BYTES if text.kind == "bytes" else text) if name in ("regexp_substr", "regexp_replace") else INT


def _check_moments(known: Sequence[Value], moments: Sequence[Value]) -> None:
    kinds = {value.kind for value in moments}
    if not (kinds <= DATES or kinds == {"time"}):
        raise Dependent(CONVERTED)
    for value in known:
        if value.is_moment:
            if value.as_text or (value.odd and not value.direct):
                raise Dependent(CONVERTED)
        elif not is_literal_of("time" if kinds == {"time"} else "datetime", value):
            raise Dependent(CONVERTED)


def _check_collation(name: str, texts: Sequence[Value]) -> None:
    padded = [value for value in texts if value.padded]
    if padded:
        others = [value for value in texts if not value.padded]
        alike = all(value.pad_space for value in padded) and all(value.collation == LITERAL for value in others)
        if name not in _OF_PADDED or not alike or len(padded) > 1:
            raise Dependent(
                "the expression compares a CHAR, whose length depends on sql_mode (PAD_CHAR_TO_FULL_LENGTH)"
            )
        return
    if any(value.kind == "bytes" for value in texts):
        # To compare a text with a byte string, the server compares the bytes of the text. So the character set of the
        # text must be known.
        alike = all(value.kind != "text" or value.ascii or value.collation in _KNOWN_CHARSETS for value in texts)
    else:
        alike = joined(texts).collation in (COLUMN, BINARY)
    if not alike:
        raise Dependent(COMPARED)


# Check whether every session converts the value of an expression to the type of its column in the same way.


def check_stored(value: Value, column: Column) -> None:
    """Make sure that every session converts an expression's ``value`` to the virtual ``column`` in the same way.

    :raises Dependent: sessions may convert the value differently.
    """
    declared = parse_type(column.type)
    kind = declared.name if declared is not None else ""
    if kind == "timestamp":
        raise Dependent("the column is a TIMESTAMP, which is converted with the session's time_zone")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    target = of_column(column, odd=False)
    if value.kind == "null":
        return
    if value.mislabelled and target.kind not in ("text", *NUMBERS):
        raise Dependent(MISLABELLED)
    if target.kind == "geometry" or value.kind == "geometry":
        if target.kind != value.kind:
            raise Dependent("the expression uses a geometry as another type")
    elif target.is_moment:
        fits = value.kind == target.kind or (value.kind in DATES and target.kind in DATES)
        if not fits or value.odd or value.digits > target.digits or (value.digits and target.kind == "date"):
            raise Dependent(CONVERTED)
    elif target.is_number:
        # The year of a TIME is the current year.
        if value.is_moment and (value.digits or value.as_text or (kind == "year" and value.kind == "time")):
            raise Dependent(CONVERTED)
    elif target.padded:
        if not value.padded:
            check_text(replace(value, wraps=False))
    elif target.kind == "json":
        if value.kind not in {"json", "text", *NUMBERS} or value.wraps:
            raise Dependent("the value that is converted to a JSON document may depend on the session")
        check_text(value)
    else:
        check_text(replace(value, wraps=False))
        if target.kind == "bytes":
            of_bytes(BYTES, [replace(value, wraps=False)])


NOT_UNDERSTOOD = "its expression is not understood"
_MOST_DIGITS = 18


class Judge:
    """Computes the `Value` of each part of the expressions of one table."""

    def __init__(
        self, columns: Mapping[str, Column], expressions: Mapping[str, str], odd: Callable[[Column], bool]
    ) -> None:
        """
        :param columns: the table's columns, by name.
        :param expressions: the expression of each generated column, as the information schema shows it.
        :param odd: a function that returns whether the copy may have rows in which a column contains a date that does
            not exist.
        """
        self._columns = columns
        self._expressions = expressions
        self._odd = odd
        # A column can use only those generated columns that come before it in the table. So no recursion is needed if
        # the columns are handled in table order.
        self._reasons: dict[str, str | None] = {}
        for column in columns.values():
            if column.details.get("generated") == "virtual":
                self._reasons[column.name] = self._reason(column)

    def dependent(self, column: Column) -> str | None:
        """Return the reason why the value of a virtual column may differ between sessions; None: it cannot differ."""
        return self._reasons[column.name]

    def _reason(self, column: Column) -> str | None:
        try:
            check_stored(self.value(parse(self._expressions.get(column.name, ""))), column)
        except NotUnderstood:
            return NOT_UNDERSTOOD
        except Dependent as reason:
            return str(reason)
        return None

    def value(self, node: Node) -> Value:
        """Return the value of ``node``.

        :raises Dependent: the value may differ between sessions.
        """
        match node.kind:
            case "column":
                return self._of_column(node.name)
            case "text" if node.note in ("date", "datetime", "timestamp", "time"):
                kind = "datetime" if node.note == "timestamp" else node.note
                if not is_literal_of(kind, Value("text", literal=node.name)):
                    raise Dependent(CONVERTED)
                return Value(kind)
            case "text" if node.note == "_binary":
                return BYTES
            case "text":
                ascii_only = node.name.isascii()
                return Value("text", collation=LITERAL, ascii=ascii_only, literal=node.name)
            case "number":
                if "e" in node.name:
                    return DOUBLE
                return Value("decimal") if "." in node.name else Value("int", unsigned=len(node.name) > _MOST_DIGITS)
            case "hex":
                return Value("bytes", unsigned=True)
            case "null":
                return NULL
        return self._call(node)

    def column(self, name: str) -> Column:
        """Return the column named ``name``; as on the server, the letter case does not matter.

        :raises Dependent: there is no such column, or the name is ambiguous.
        """
        if name in self._columns:
            return self._columns[name]
        alike = [column for other, column in self._columns.items() if other.lower() == name.lower()]
        if len(alike) != 1:
            raise Dependent(NOT_UNDERSTOOD)
        return alike[0]

    def _of_column(self, name: str) -> Value:
        column = self.column(name)
        if column.details.get("generated") == "virtual":
            # A run reports no problem for a column that it does not read. But another column that the run reads may use
            # this column.
            reason = self._reasons.get(column.name, NOT_UNDERSTOOD)
            if reason is not None:
                raise Dependent(f"the expression uses the VIRTUAL column {column.name}: {reason}")
        return of_column(column, odd=self._odd(column))

    def _call(self, node: Node) -> Value:
        name = node.name
        if name.startswith(("is ", "is not ")) and name.endswith(" null"):
            return self._tested(node)
        values = [self.value(argument) for argument in node.arguments]
        if any(value.mislabelled for value in values):
            raise Dependent(MISLABELLED)
        if name in functions.COMPARISONS:
            return check_comparable(name, values)
        if name in functions.CHOICES or name in ("case of", "nullif", "greatest", "least", "field", "elt"):
            return self._chosen(name, values)
        if name in functions.SEARCHES:
            return check_found(name, values)
        if name in SPECIAL_FORMS:
            return SPECIAL_FORMS[name](node, values)
        for value in values:
            if value.wraps:
                raise Dependent(DIFFERENCE)
        if name in functions.LOGICAL or name.startswith("is "):
            return of_numbers(INT, values)
        if name in functions.ARITHMETIC:
            return _arithmetic(name, values)
        if name in functions.SAME_NUMBER:
            of_numbers(INT, values)
            return promoted([as_number(value) for value in values[:1]])
        if name in functions.OF_NUMBERS:
            return of_numbers(functions.OF_NUMBERS[name], values)
        if name in functions.OF_BYTES:
            return of_bytes(functions.OF_BYTES[name], values)
        if name in functions.OF_CHARACTERS:
            joined(values)
            return functions.OF_CHARACTERS[name]
        if name in functions.EDITING or name in functions.PARTS:
            return joined(values if name in functions.EDITING else values[:1]) if values else NULL
        if name in functions.LETTERS:
            return letters(values)
        if name in functions.OF_JSON:
            return of_json(functions.OF_JSON[name], values)
        if name in functions.OF_DATES or name in functions.OF_TIMES:
            return of_moments(name, values)
        raise Dependent(f"the expression uses {name.upper()}, and the result may depend on the session")

    def _tested(self, node: Node) -> Value:
        tested = node.arguments[0]
        # If a stored column is NULL, it is NULL in every session, whatever the type of the column is.
        if tested.kind != "column" or self.column(tested.name).details.get("generated") == "virtual":
            self.value(tested)
        return INT

    @staticmethod
    def _chosen(name: str, values: Sequence[Value]) -> Value:
        """Return the value that CASE or a similar function chooses, after checking its comparisons."""
        if name == "case of":
            check_comparable(name, [values[0], *values[1:-1:2]])
            return merged([*values[2:-1:2], values[-1]])
        if name == "case":
            of_numbers(INT, values[:-1:2])
            return merged([*values[1:-1:2], values[-1]])
        if name == "if":
            of_numbers(INT, values[:1])
            return merged(values[1:])
        if name == "elt":
            of_numbers(INT, values[:1])
            return joined(values[1:])
        if name in ("nullif", "greatest", "least", "field"):
            check_comparable(name, values)
            if name == "field":
                return INT
            if name != "nullif":
                return _greatest(values)
            return replace(values[0], direct=False)
        return merged(values)


def _arithmetic(name: str, values: Sequence[Value]) -> Value:
    numbers = [as_number(value) for value in values]
    found = promoted([value for value in numbers if value.kind != "null"] or [INT])
    if name == "-" and any(value.unsigned for value in numbers):
        return replace(found, wraps=True)
    return replace(found, kind="int", unsigned=False) if name == "div" and not found.unsigned else found


def _greatest(values: Sequence[Value]) -> Value:
    if any(value.odd for value in values):
        raise Dependent(CONVERTED)
    # The conversion of a date and another type to a common type is not modelled.
    if any(value.is_moment for value in values) and len({value.kind for value in values} - {"null"}) > 1:
        raise Dependent(CONVERTED)
    return merged(values)
