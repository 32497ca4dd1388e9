"""MySQL's packed dates and the Gregorian calendar, for kernels.

MySQL can store dates that are not in the calendar: ``0000-00-00``, ``2024-00-15``, and with ALLOW_INVALID_DATES
``2024-02-31``. So dates remain packed, as separate fields, until an Arrow array is built from them.

The calendar algorithms are from H. Hinnant, "chrono-Compatible Low-Level Date Algorithms": in a year that begins in
March, the number of days before a month is a linear function of the month.
"""

from __future__ import annotations

from airflow_provider_cdc.core.kernels.compile import inner

NO_DATE = -(2**63)
"""Result of ``days_of`` for a date that is not in the calendar."""
DATE_SHIFT = 41
"""A packed DATETIME, shifted right by this number of bits, is its date."""
DAY_MICROS = 86_400_000_000


@inner
def pack_datetime(year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int) -> int:
    """Pack a DATETIME as the server does, with the largest unit in the highest bits, so that packed values sort in
    order of time. Any field may be zero."""
    date = ((year * 13 + month) << 5) | day
    time = (hour << 12) | (minute << 6) | second
    return (((date << 17) | time) << 24) | micro


@inner
def pack_epoch(seconds: int, micro: int) -> int:
    """Return non-negative seconds since 1970-01-01 as a packed DATETIME."""
    days, rest = seconds // 86_400, seconds % 86_400
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return pack_datetime(year, month, day, rest // 3_600, rest // 60 % 60, rest % 60, micro)


@inner
def days_of(packed: int) -> int:
    """Return the days from 1970-01-01 to the date of a packed DATETIME, or ``NO_DATE``."""
    date = packed >> DATE_SHIFT
    day, months = date & 31, date >> 5
    year, month = months // 13, months % 13
    if year > 9_999 or month == 0 or day == 0 or day > _days_in_month(year, month):
        return NO_DATE
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


@inner
def micros_of_day(packed: int) -> int:
    """Return the microseconds from midnight to the time of day of a packed DATETIME."""
    hour, minute, second = (packed >> 36) & 31, (packed >> 30) & 63, (packed >> 24) & 63
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + (packed & 0xFF_FFFF)


@inner
def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 31 - ((month - 1) % 7 & 1)


def text_of(packed: int) -> str:
    """Return the text of a packed DATETIME as MySQL prints it: ``2024-02-31 00:00:00``, and the fraction if it is not
    zero."""
    months, day = packed >> 46, packed >> 41 & 31
    hour, minute, second, micro = packed >> 36 & 31, packed >> 30 & 63, packed >> 24 & 63, packed & 0xFF_FFFF
    fraction = f".{micro:06}" if micro else ""
    return f"{months // 13:04}-{months % 13:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}"
