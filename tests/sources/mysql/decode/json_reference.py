"""A second, slow reader of binary JSON in plain Python, with which the kernels are compared.

It shares no code with them: strings are Python's, doubles are ``repr``, and containers nest by recursion.
"""

from __future__ import annotations

import base64
import math
import re
import struct

from airflow_provider_cdc.errors import DecodeError

MAX_DEPTH = 100

_ESCAPES = {
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}
_SPECIAL = re.compile(r'[\x00-\x1f"\\]')
_LITERALS = ("null", "true", "false")
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}


def json_text(data: bytes) -> str:
    """What `airflow_provider_cdc.sources.mysql.decode.json_text.json_text` should give, and raise."""
    if not data:
        return "null"
    return "".join(_Document(data).value(data[0], 1, len(data), 0))


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data
        # Values that share their bytes could print exponentially much text; the server never stores such.
        self._unread = len(data)

    def value(self, kind: int, start: int, end: int, depth: int) -> list[str]:
        if kind <= 3:
            return self._container(kind, start, end, depth)
        if kind == 4:
            literal = self._read(start, 1, end)[0]
            if literal >= len(_LITERALS):
                raise self._error(start, f"unknown literal {literal}")
            return [_LITERALS[literal]]
        if form := _INTEGERS.get(kind):
            (number,) = struct.unpack(form, self._read(start, struct.calcsize(form), end))
            return [str(number)]
        if kind == 11:
            (double,) = struct.unpack("<d", self._read(start, 8, end))
            if not math.isfinite(double):
                raise self._error(start, "a double that is not a number")
            return [_double(double)]
        if kind == 12:
            return [_quoted(self._text(*self._sized(start, end)))]
        if kind == 15:
            code = self._read(start, 1, end)[0]
            return [self._opaque(code, *self._sized(start + 1, end))]
        raise self._error(start, f"unknown type {kind}")

    def _container(self, kind: int, start: int, end: int, depth: int) -> list[str]:
        if depth == MAX_DEPTH:
            raise self._error(start, f"more than {MAX_DEPTH} levels")
        large, is_object = kind & 1, kind < 2
        width, form = (4, "<I") if large else (2, "<H")
        count, size = struct.unpack(form[0] + 2 * form[1], self._read(start, 2 * width, end))
        keys = start + 2 * width
        entries = keys + count * (width + 2) if is_object else keys
        values = entries + count * (width + 1)
        end = min(end, start + size)
        if start + size > end or values > end:
            raise self._error(start, f"{count} elements in {size} bytes, where {end - start} are left")
        self._read(keys, values - keys, end)
        out = ["{" if is_object else "["]
        inlined = (4, 5, 6, 7, 8) if large else (4, 5, 6)
        for index in range(count):
            if index:
                out.append(", ")
            if is_object:
                at = keys + index * (width + 2)
                offset, length = struct.unpack_from("<IH" if large else "<HH", self._data, at)
                if start + offset < values:
                    raise self._error(at, f"a key at {offset}, inside the entries")
                out += [_quoted(self._text(start + offset, self._read(start + offset, length, end))), ": "]
            at = entries + index * (width + 1)
            kind = self._data[at]
            if kind in inlined:
                unread = self._unread
                self._unread = width  # an entry's bytes were counted with its container
                out += self.value(kind, at + 1, at + 1 + width, depth + 1)
                self._unread = unread
                continue
            (offset,) = struct.unpack_from(form, self._data, at + 1)
            if start + offset < values:
                raise self._error(at, f"a value at {offset}, inside the entries")
            out += self.value(kind, start + offset, end, depth + 1)
        out.append("}" if is_object else "]")
        return out

    def _opaque(self, code: int, start: int, body: bytes) -> str:
        if code == 246:
            return self._decimal(start, body)
        if code in (7, 10, 11, 12):
            if len(body) != 8:
                raise self._error(start, f"a date or time in {len(body)} bytes")
            return f'"{self._temporal(code, start, int.from_bytes(body, "little", signed=True))}"'
        if code == 253:
            return _quoted(self._text(start, body))
        encoded = base64.b64encode(body).decode()
        lines = [encoded[at : at + 76] for at in range(0, len(encoded), 76)]
        return f'"base64:type{code}:' + "\\n".join(lines) + '"'

    def _decimal(self, start: int, body: bytes) -> str:
        if len(body) < 2 or not body[1] <= body[0] <= 81:
            raise self._error(start, "a decimal of impossible precision")
        scale, whole = body[1], body[0] - body[1]
        groups = [whole % 9, *[9] * (whole // 9)], [*[9] * (scale // 9), scale % 9]
        if len(body) - 2 != sum((digits + 1) // 2 - digits // 9 for part in groups for digits in part):
            raise self._error(start, f"a decimal({body[0]},{scale}) in {len(body) - 2} bytes")
        if len(body) == 2:
            raise self._error(start, "a decimal without digits")
        negative = not body[2] & 0x80
        raw = bytes(byte ^ (0xFF if negative else 0) for byte in body[2:])
        raw = bytes([raw[0] ^ 0x80]) + raw[1:]
        parts, at = [], 0
        for part in groups:
            text = ""
            for digits in filter(None, part):
                width = (digits + 1) // 2 - digits // 9
                group = int.from_bytes(raw[at : at + width], "big")
                if group >= 10**digits:
                    raise self._error(start + 2 + at, f"{group} as {digits} digits of a decimal")
                text += f"{group:0{digits}}"
                at += width
            parts.append(text)
        whole_text = parts[0].lstrip("0") or "0"
        return ("-" if negative else "") + whole_text + (f".{parts[1]}" if scale else "")

    def _temporal(self, code: int, start: int, packed: int) -> str:
        seconds, micros = abs(packed) >> 24, abs(packed) & 0xFFFFFF
        hour, minute, second = seconds >> 12, seconds >> 6 & 63, seconds & 63
        if code == 11:
            date, bound, sign = "", 838, "-" if packed < 0 else ""
        else:
            days = seconds >> 17
            hour &= 31
            year, month, day = days // 32 // 13, days // 32 % 13, days % 32
            if packed < 0 or year > 9999:
                raise self._error(start, "a date beyond the year 9999")
            date, bound, sign = f"{year:04}-{month:02}-{day:02}", 23, ""
            if code == 10:
                return date
            date += " "
        if hour > bound or minute > 59 or second > 59 or micros > 999_999:
            raise self._error(start, "a time of day that no clock shows")
        return f"{date}{sign}{hour:02}:{minute:02}:{second:02}.{micros:06}"

    def _sized(self, start: int, end: int) -> tuple[int, bytes]:
        """The start and the bytes of a body after its length, which is stored in groups of 7 bits, lowest first."""
        length = 0
        for index in range(5):
            byte = self._read(start + index, 1, end)[0]
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                at = start + index + 1
                return at, self._read(at, length, end)
        raise self._error(start, "a length of more than 5 bytes")

    def _text(self, start: int, body: bytes) -> str:
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise self._error(start + error.start, "text that is not UTF-8") from error

    def _read(self, start: int, length: int, end: int) -> bytes:
        if start + length > end:
            raise self._error(start, f"{length} bytes wanted, {max(0, end - start)} left")
        self._unread -= length
        if self._unread < 0:
            raise self._error(start, "values that overlap")
        return self._data[start : start + length]

    def _error(self, offset: int, what: str) -> DecodeError:
        return DecodeError(f"binary JSON of {len(self._data)} bytes holds {what}", where=f"byte {offset}")


def _quoted(text: str) -> str:
    return '"' + _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text) + '"'


def _double(value: float) -> str:
    """``repr`` in the layout of the server's ``my_gcvt``."""
    mantissa, exponent = f"{value!r}e0".split("e")[:2]
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0"
    if point < -14 or (point > 15 and len(digits) <= point):
        return f"{sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
