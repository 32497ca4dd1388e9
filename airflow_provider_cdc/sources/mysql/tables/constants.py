"""The bytes that a constant default has in the log. All rows get it from the statement that adds the column."""

from __future__ import annotations

import re
from decimal import Decimal

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import Added
from airflow_provider_cdc.sources.mysql.tables.alike_labels import may_be_alike
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, decimal_groups

_ASCII = ("ascii", "latin1", "utf8mb3", "utf8mb4")
"""Character sets in which ASCII text has the same bytes as in ASCII."""
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)


class NotConstant(Exception):
    """The reason why the bytes of a default are not known."""


def field_of(column: Column, added: Added) -> str | None:
    """Return the field of the new ``column`` in row images, in hexadecimal digits; None: NULL.

    :raises NotConstant: the default is no constant, or the bytes of a constant of this type are not known.
    """
    text = added.default.text if added.default is not None else None
    if text is None:
        if added.nullable:
            return None
        if added.default is not None:
            raise NotConstant("NULL is no value of it")
    kind = ColumnType.of(column)
    value = _value(column, kind, text, added.default is not None and added.default.quoted)
    length = len(value).to_bytes(kind.prefix, "little") if kind.prefix else b""
    return (length + value).hex()


def _value(column: Column, kind: ColumnType, text: str | None, quoted: bool) -> bytes:
    """Return the bytes of a value; ``text`` None: of the value that the server chooses for NOT NULL without default."""
    declared = column.type.partition("(")[0].partition(" ")[0]
    if kind.family is Family.NUMBER and kind.width and declared not in ("float", "double"):
        if text is not None and not _INTEGER.fullmatch(text):
            raise NotConstant("its default is not written as a whole number")
        return _integer(int(text or "0"), kind.width, kind.unsigned)
    if kind.family not in (Family.NUMBER, Family.DECIMAL) and text is not None and not quoted:
        raise NotConstant("its default is not written as a string")
    if kind.family is Family.TEXT and declared in ("varchar", "char") and kind.charset in _ASCII:
        if (text or "").endswith(" "):
            raise NotConstant("its default ends with a space")
        return (text or "").encode("ascii")
    if kind.family is Family.DECIMAL:
        return _decimal(Decimal(_number(text or "0")), kind.precision, kind.scale)
    if kind.family is Family.ENUM:
        if text is not None and may_be_alike(kind.labels):
            raise NotConstant("the server may take its default for another label")
        if text is None or text in kind.labels:
            return (1 + (kind.labels.index(text) if text is not None else 0)).to_bytes(kind.width, "little")
        raise NotConstant("its default is not written as one of its labels")
    if kind.family is Family.DATE and text is not None and (date := _DATE.fullmatch(text)):
        year, month, day = map(int, date.groups())
        return (year << 9 | month << 5 | day).to_bytes(3, "little")
    raise NotConstant(f"a default that is not NULL cannot be carried for the type {column.type}")


def _number(text: str) -> str:
    if not re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
        raise NotConstant("its default is not written as a decimal number")
    return text


def _integer(number: int, width: int, unsigned: bool) -> bytes:
    try:
        return number.to_bytes(width, "little", signed=not unsigned)
    except OverflowError as error:
        raise NotConstant("its default is outside the range of its type") from error


def _decimal(number: Decimal, precision: int, scale: int) -> bytes:
    """Return the bytes of a DECIMAL: groups of nine digits from the decimal point on, the first bit inverted, and all
    bits inverted for a negative number."""
    scaled = number.scaleb(scale)
    if scaled != scaled.to_integral_value() or abs(scaled) >= 10**precision:
        raise NotConstant("its default does not fit its type exactly")
    digits = f"{abs(int(scaled)):0{precision}d}"
    value = bytearray()
    for size, count in decimal_groups(precision, scale):
        value += int(digits[:count]).to_bytes(size, "big")
        digits = digits[count:]
    value[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in value) if scaled < 0 else bytes(value)
