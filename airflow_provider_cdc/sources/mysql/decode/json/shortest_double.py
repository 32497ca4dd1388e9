"""The kernel that computes the shortest decimal digits that read back as a given double.

If several decimal numbers of the shortest length round to the double, the result is the decimal number nearest to it.
If two of these numbers are equally near, the result is the number with an even last digit. ``repr`` and MySQL print the
same digits (both use David Gay's dtoa).

The algorithm is Schubfach (Raffaello Giulietti, "The Schubfach way to render doubles", 2020). It scales the double and
the two ends of its rounding interval by a power of ten, with 128 bits, so that the interval spans between one and ten
units of the last digit. As a result, there are at most four candidates.
"""

from __future__ import annotations

import numpy as np

from airflow_provider_cdc.core.kernels.compile import inner

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
