"""Kernels that write scalars of binary JSON into a buffer, as MySQL prints them.

Every writer takes the position to write at. It returns the position after the text, or a negative code (see below).
Before it writes, the writer checks that the text fits. The caller guarantees that the bytes to read exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.core.kernels import inner, load64, store16, store64

# The kernel that computes the shortest decimal digits that read back as a given double.
#
# If several decimal numbers of the shortest length round to the double, the result is the decimal number nearest to it.
# If two of these numbers are equally near, the result is the number with an even last digit. ``repr`` and MySQL print
# the same digits (both use David Gay's dtoa).
#
# The algorithm is Schubfach (Raffaello Giulietti, "The Schubfach way to render doubles", 2020). It scales the double
# and the two ends of its rounding interval by a power of ten, with 128 bits, so that the interval spans between one and
# ten units of the last digit. As a result, there are at most four candidates.


_FIRST, _LAST = -292, 324


def _power_of_ten(exponent: int) -> int:
    """Return 10**exponent, scaled by a power of two to 128 bits, rounded up."""
    bits = (10 ** abs(exponent)).bit_length()
    if exponent < 0:
        return -(-(1 << 127 + bits) // 10**-exponent)
    return -(-(10**exponent << 128) // (1 << bits))


_POWERS = np.array(
    [[power >> 64, power & (2**64 - 1)] for power in map(_power_of_ten, range(_FIRST, _LAST + 1))], np.uint64
)

_U1 = np.uint64(1)
_U2 = np.uint64(2)
_U4 = np.uint64(4)
_U10 = np.uint64(10)
_U32 = np.uint64(32)
_U40 = np.uint64(40)
_LOW_32 = np.uint64(0xFFFF_FFFF)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_EIGHT_ZEROS = np.uint64(100_000_000)


@inner
def shortest(bits: int) -> tuple[int, int]:
    """Return the shortest digits, and an exponent, so that ± digits · 10**exponent reads back as the double. The digits
    do not end in 0.

    :param bits: the IEEE 754 bits (uint64) of a finite double other than zero; the sign is ignored.
    """
    fraction = bits & _FRACTION
    biased = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    significand = fraction | _HIDDEN if biased else fraction
    exponent = max(biased, 1) - 1075
    # Below a power of two, the distance between doubles is half as large.
    narrow = fraction == 0 and biased > 1

    # Compute floor(log10(x)) for x = 2**exponent, or for x = 3/4 * 2**exponent. The multiplication gives the exact
    # result in this range.
    scale = (exponent * 1_262_611 - (524_031 if narrow else 0)) >> 22
    shift = np.uint64(exponent + ((-scale * 1_741_647) >> 19) + 1)
    high = _POWERS[-scale - _FIRST, 0]
    low = _POWERS[-scale - _FIRST, 1]
    middle = significand << _U2
    scaled_lower = _scaled(high, low, (middle - (_U1 if narrow else _U2)) << shift)
    value = _scaled(high, low, middle << shift)
    right = _scaled(high, low, (middle + _U2) << shift)
    if significand & _U1:
        # The ends of the interval are halfway between two doubles, and a tie rounds to the double with the even
        # significand. So if this significand is odd, exclude the ends.
        scaled_lower += _U1
        right -= _U1

    units = value >> _U2
    if units >= _U10:
        tens = units // _U10
        below = scaled_lower <= _U40 * tens
        above = _U40 * tens + _U40 <= right
        if below != above:
            return _trimmed(tens + _U1 if above else tens, scale + 1)
    below = scaled_lower <= _U4 * units
    above = _U4 * units + _U4 <= right
    if below == above:
        half = _U4 * units + _U2
        above = value > half or (value == half and units & _U1 != 0)
    return _trimmed(units + _U1 if above else units, scale)


@inner
def _scaled(high: int, low: int, factor: int) -> int:
    """Return the product's bits from 2**128 on. To detect ties, the lowest bit of the result is also set if any of the
    omitted bits is set."""
    carried = high * factor + _high_product(low, factor)
    top = _high_product(high, factor) + (_U1 if carried < high * factor else np.uint64(0))
    return top | _U1 if carried > _U1 else top


@inner
def _high_product(a: int, b: int) -> int:
    """Return the upper 64 bits of a 128-bit product."""
    a_low, a_high = a & _LOW_32, a >> _U32
    b_low, b_high = b & _LOW_32, b >> _U32
    first, second = a_low * b_high, a_high * b_low
    carry = ((a_low * b_low) >> _U32) + (first & _LOW_32) + (second & _LOW_32)
    return a_high * b_high + (first >> _U32) + (second >> _U32) + (carry >> _U32)


@inner
def _trimmed(digits: int, exponent: int) -> tuple[int, int]:
    if digits % _EIGHT_ZEROS == 0:
        digits //= _EIGHT_ZEROS
        exponent += 8
    while digits % _U10 == 0:
        digits //= _U10
        exponent += 1
    return digits, exponent


FULL = -1
UNKNOWN_TYPE = -2
CUT_OFF = -3
BAD_OFFSET = -4
OVERLAP = -5
TOO_DEEP = -6
BAD_LENGTH = -7
BAD_LITERAL = -8
BAD_DOUBLE = -9
BAD_DECIMAL = -10
BAD_TIME = -11

# Type codes of MySQL's protocol. Opaque values contain these codes.
_TIMESTAMP = 7
_DATE = 10
_TIME = 11
_DATETIME = 12
_NEWDECIMAL = 246
_VAR_STRING = 253

_DECIMAL_DIGITS = 81
_MAX_HOUR = 838
_BASE64_LINE = 76

_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_ZERO = ord("0")
_MINUS = ord("-")
_POINT = ord(".")
_COLON = ord(":")
_SPACE = ord(" ")
_HEX_FOLLOWS = ord("u")
_LINE_FEED = ord("n")
_EXPONENT = ord("e")
_PADDING = ord("=")
_U100 = np.uint64(100)
_ONES = np.uint64(0x0101_0101_0101_0101)
_TOP_BITS = _ONES * np.uint64(0x80)
_SPACES = _ONES * np.uint64(ord(" "))
_QUOTES = _ONES * np.uint64(_QUOTE)
_BACKSLASHES = _ONES * np.uint64(_BACKSLASH)
_INFINITE = np.uint64(0x7FF)


def _letters_after_backslash() -> np.ndarray[Any, Any]:
    letters = np.zeros(256, np.uint8)
    letters[:0x20] = ord("u")
    for character, letter in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True):
        letters[ord(character)] = ord(letter)
    return letters


_ESCAPES = _letters_after_backslash()
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_OPAQUE = np.frombuffer(b'"base64:type', np.uint8)
_POWERS_OF_TEN = 10 ** np.arange(10)
_UNSIGNED_POWERS = np.array([10**power for power in range(20)], np.uint64)
_PAIRS = np.array([_ZERO + tens | _ZERO + ones << 8 for tens in range(10) for ones in range(10)])
_DECIMAL_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4])


@inner
def write_ascii(text: Any, out: Any, pos: int) -> int:
    """Write ``text`` unchanged, without quotes."""
    if pos + len(text) > len(out):
        return FULL
    for index in range(len(text)):
        out[pos + index] = text[index]
    return pos + len(text)


@inner
def write_string(data: Any, at: int, length: int, out: Any, pos: int) -> int:
    """Write a string in double quotes. Only the quote, the backslash and U+0000 to U+001F are escaped."""
    spare = len(out) - pos - length - 2
    if spare < 0:
        return FULL
    out[pos] = _QUOTE
    pos += 1
    end = at + length
    while at < end:
        if end - at >= 8:
            word = np.uint64(load64(data, at))
            if not _has_special(word):
                store64(out, pos, np.int64(word))
                at += 8
                pos += 8
                continue
        for _ in range(min(8, end - at)):
            byte = data[at]
            escape = _ESCAPES[byte]
            at += 1
            if escape == 0:
                out[pos] = byte
                pos += 1
                continue
            extra = 5 if escape == _HEX_FOLLOWS else 1
            spare -= extra
            if spare < 0:
                return FULL
            out[pos] = _BACKSLASH
            out[pos + 1] = escape
            if extra == 5:
                out[pos + 2] = _ZERO
                out[pos + 3] = _ZERO
                out[pos + 4] = _HEX[byte >> 4]
                out[pos + 5] = _HEX[byte & 15]
            pos += 1 + extra
    out[pos] = _QUOTE
    return pos + 1


@inner
def _has_special(word: int) -> bool:
    """Return whether any of the eight bytes needs an escape. (The subtraction of n from a byte borrows if the byte is
    below n.)"""
    quotes = word ^ _QUOTES
    backslashes = word ^ _BACKSLASHES
    below = (word - _SPACES) & ~word | (quotes - _ONES) & ~quotes | (backslashes - _ONES) & ~backslashes
    return below & _TOP_BITS != 0


@inner
def write_integer(value: int, is_signed: bool, out: Any, pos: int) -> int:
    """Write an integer. `value` is an int64 that contains the 64 bits of the signed or unsigned number."""
    if pos + 20 > len(out):
        return FULL
    magnitude = np.uint64(value)
    if is_signed and value < 0:
        out[pos] = _MINUS
        pos += 1
        magnitude = np.uint64(0) - magnitude
    return _write_digits(magnitude, _count_digits(magnitude), out, pos)


@inner
def write_double(bits: int, out: Any, pos: int) -> int:
    """Write the shortest digits that read back as the double with these IEEE 754 bits (uint64).

    The layout is the same as in the server's ``my_gcvt``. The form ``d.ddde-N`` is used in two cases: more than 14
    zeros would be between the point and the digits, or the point would be at or after the 16th place with no digits
    after it. In all other cases, the text has no exponent, and at least one digit on either side of the point.
    """
    if (bits >> np.uint64(52)) & _INFINITE == _INFINITE:
        return BAD_DOUBLE
    if pos + 40 > len(out):
        return FULL
    if bits >> np.uint64(63):
        out[pos] = _MINUS
        pos += 1
    if bits << np.uint64(1) == 0:
        digits, exponent = np.uint64(0), 0
    else:
        digits, exponent = shortest(bits)
    count = _count_digits(digits)
    point = count + exponent
    if point < -14 or (point > 15 and count <= point):
        end = _write_digits(digits, count, out, pos + 1)
        out[pos] = out[pos + 1]
        out[pos + 1] = _POINT
        return _write_exponent(point - 1, out, end if count > 1 else pos + 1)
    if point <= 0:
        out[pos] = _ZERO
        out[pos + 1] = _POINT
        for index in range(-point):
            out[pos + 2 + index] = _ZERO
        return _write_digits(digits, count, out, pos + 2 - point)
    if point < count:
        end = _write_digits(digits, count, out, pos + 1)
        for index in range(pos, pos + point):
            out[index] = out[index + 1]
        out[pos + point] = _POINT
        return end
    pos = _write_digits(digits, count, out, pos)
    for index in range(exponent):
        out[pos + index] = _ZERO
    pos += exponent
    out[pos] = _POINT
    out[pos + 1] = _ZERO
    return pos + 2


@inner
def write_opaque(data: Any, code: int, at: int, length: int, out: Any, pos: int) -> int:
    """Write a value of another SQL type with code `code`. The `length` bytes of the value are at `at`."""
    if code == _NEWDECIMAL:
        return _write_decimal(data, at, length, out, pos)
    if code in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        return _write_temporal(data, code, at, length, out, pos)
    if code == _VAR_STRING:
        return write_string(data, at, length, out, pos)
    return _write_base64(data, code, at, length, out, pos)


@inner
def _write_decimal(data: Any, at: int, length: int, out: Any, pos: int) -> int:
    """Write a decimal. The value is stored as precision and scale (one byte each) and MySQL's DECIMAL: groups of 9
    digits in 4 big-endian bytes. The first and the last group may be shorter. The inverted top bit is the sign. In a
    negative number, all other bits are inverted, too."""
    if length < 3:
        return BAD_DECIMAL
    scale = np.int64(data[at + 1])
    whole = np.int64(data[at]) - scale
    if whole < 0 or whole + scale > _DECIMAL_DIGITS:
        return BAD_DECIMAL
    size = (whole // 9 + scale // 9) * 4 + _DECIMAL_BYTES[whole % 9] + _DECIMAL_BYTES[scale % 9]
    if length != 2 + size:
        return BAD_DECIMAL
    if pos + _DECIMAL_DIGITS + 3 > len(out):
        return FULL
    first = at + 2
    flip = 0
    if data[first] & 0x80 == 0:
        flip = 0xFF
        out[pos] = _MINUS
        pos += 1
    start = pos
    read = first
    left = whole + scale
    while left > 0:
        if left == scale:
            if pos == start:
                out[pos] = _ZERO
                pos += 1
            out[pos] = _POINT
            pos += 1
        count = (left - scale - 1) % 9 + 1 if left > scale else min(left, 9)
        group = 0
        for _ in range(_DECIMAL_BYTES[count]):
            byte = np.int64(data[read]) ^ flip
            group = group << 8 | (byte ^ 0x80 if read == first else byte)
            read += 1
        if group >= _POWERS_OF_TEN[count]:
            return BAD_DECIMAL
        for power in range(count - 1, -1, -1):
            digit = group // _POWERS_OF_TEN[power] % 10
            if digit or pos > start:
                out[pos] = _ZERO + digit
                pos += 1
        left -= count
    if pos == start:
        out[pos] = _ZERO
        pos += 1
    return pos


@inner
def _write_temporal(data: Any, code: int, at: int, length: int, out: Any, pos: int) -> int:
    """Write a date or time. The value is stored as a little-endian int64: from the low end, 24 bits of microseconds, 6
    bits of seconds, 6 bits of minutes, and the hours. With a date, the hours have 5 bits, followed by 5 bits of the day
    and year · 13 + month."""
    if length != 8:
        return BAD_TIME
    if pos + 30 > len(out):
        return FULL
    packed = load64(data, at)
    out[pos] = _QUOTE
    pos += 1
    if code == _TIME:
        if packed < 0:
            packed = -packed
            out[pos] = _MINUS
            pos += 1
    elif packed < 0:
        return BAD_TIME
    hour = packed >> 36
    minute = packed >> 30 & 63
    second = packed >> 24 & 63
    micros = packed & 0xFF_FFFF
    if code != _TIME:
        months = packed >> 46
        if months >= 10_000 * 13:
            return BAD_TIME
        year = months // 13
        pos = _write_two(year // 100, out, pos)
        pos = _write_two(year % 100, out, pos)
        out[pos] = _MINUS
        pos = _write_two(months % 13, out, pos + 1)
        out[pos] = _MINUS
        pos = _write_two(packed >> 41 & 31, out, pos + 1)
        if code == _DATE:
            out[pos] = _QUOTE
            return pos + 1
        out[pos] = _SPACE
        pos += 1
        hour &= 31
        if hour > 23:
            return BAD_TIME
    if hour < 0 or hour > _MAX_HOUR or minute > 59 or second > 59 or micros > 999_999:
        return BAD_TIME
    if hour > 99:
        out[pos] = _ZERO + hour // 100
        pos += 1
    pos = _write_two(hour % 100, out, pos)
    out[pos] = _COLON
    pos = _write_two(minute, out, pos + 1)
    out[pos] = _COLON
    pos = _write_two(second, out, pos + 1)
    out[pos] = _POINT
    pos = _write_two(micros // 10_000, out, pos + 1)
    pos = _write_two(micros // 100 % 100, out, pos)
    pos = _write_two(micros % 100, out, pos)
    out[pos] = _QUOTE
    return pos + 1


@inner
def _write_base64(data: Any, code: int, at: int, length: int, out: Any, pos: int) -> int:
    r"""Write ``"base64:typeN:…"``, in lines of 76 letters with escaped line feeds between them."""
    letters = (length + 2) // 3 * 4
    if pos + len(_OPAQUE) + 5 + letters + letters // _BASE64_LINE * 2 > len(out):
        return FULL
    pos = write_ascii(_OPAQUE, out, pos)
    pos = _write_digits(np.uint64(code), _count_digits(np.uint64(code)), out, pos)
    out[pos] = _COLON
    pos += 1
    for index in range(0, length, 3):
        if index and index % (_BASE64_LINE // 4 * 3) == 0:
            out[pos] = _BACKSLASH
            out[pos + 1] = _LINE_FEED
            pos += 2
        remaining = min(length - index, 3)
        group = np.int64(0)
        for byte in range(3):
            group = group << 8 | (np.int64(data[at + index + byte]) if byte < remaining else 0)
        for letter in range(4):
            out[pos + letter] = _BASE64[group >> (18 - 6 * letter) & 63] if letter <= remaining else _PADDING
        pos += 4
    out[pos] = _QUOTE
    return pos + 1


@inner
def _count_digits(value: int) -> int:
    count = 1
    while count < 20 and value >= _UNSIGNED_POWERS[count]:
        count += 1
    return count


@inner
def _write_digits(value: int, count: int, out: Any, pos: int) -> int:
    index = pos + count
    while index > pos + 1:
        index -= 2
        _write_two(np.int64(value % _U100), out, index)
        value //= _U100
    if index > pos:
        out[pos] = np.uint64(_ZERO) + value
    return pos + count


@inner
def _write_two(value: int, out: Any, pos: int) -> int:
    store16(out, pos, _PAIRS[value])
    return pos + 2


@inner
def _write_exponent(exponent: int, out: Any, pos: int) -> int:
    out[pos] = _EXPONENT
    pos += 1
    if exponent < 0:
        out[pos] = _MINUS
        pos += 1
    magnitude = np.uint64(abs(exponent))
    return _write_digits(magnitude, _count_digits(magnitude), out, pos)
