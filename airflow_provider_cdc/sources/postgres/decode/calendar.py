"""Converts dates and times, for kernels and messages, in PostgreSQL's proleptic Gregorian calendar."""

from __future__ import annotations

from airflow_provider_cdc.core.kernels import inner

DAY_MICROS = 86_400_000_000

# ADBC adds the difference of the two epochs (2000 and 1970) to the stored value, and ignores overflow. So infinity,
# minus infinity, and timestamps beyond Arrow's range become lower numbers than the earliest date that PostgreSQL can
# store.
FIRST_DAY = -2_440_588
"""The first date that PostgreSQL stores, 4714-11-24 BC, in days since 1970."""
FIRST_MICRO = FIRST_DAY * DAY_MICROS
INFINITE_DAY, MINUS_INFINITE_DAY = -(2**31) + 10_956, -(2**31) + 10_957
INFINITE_MICRO, MINUS_INFINITE_MICRO = -(2**63) + 946_684_799_999_999, -(2**63) + 946_684_800_000_000


@inner
def days_of(year: int, month: int, day: int) -> int:
    """Return the number of days from 1970-01-01 to a date. The year before year 1 is year 0. The function does not
    check that the day exists."""
    # In this computation, years begin in March, so that a leap day is the last day of its year.
    year -= 1 if month <= 2 else 0
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@inner
def month_days(year: int, month: int) -> int:
    """Return the number of days of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


def text_of_day(day: int) -> str:
    """Format a date as PostgreSQL does, given the value that ADBC returns for it."""
    if day < FIRST_DAY:
        return "infinity" if day == INFINITE_DAY else "-infinity"
    day += 719_468
    era, of_era = divmod(day, 146_097)
    of_era_year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * of_era_year + of_era_year // 4 - of_era_year // 100)
    month = (5 * of_year + 2) // 153
    number = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = of_era_year + era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{number:02}" if year > 0 else f"{1 - year:04}-{month:02}-{number:02} BC"


def text_of_micro(micro: int) -> str:
    """Format a timestamp as PostgreSQL does, without time zone, given the value that ADBC returns for it."""
    if micro == INFINITE_MICRO:
        return "infinity"
    if micro == MINUS_INFINITE_MICRO:
        return "-infinity"
    if micro < FIRST_MICRO:
        micro += 2**64
    day, rest = divmod(micro, DAY_MICROS)
    date, _, era = text_of_day(day).partition(" ")
    return f"{date} {text_of_time(rest)}{' BC' if era else ''}"


def text_of_time(micro: int) -> str:
    """Format a time of day as PostgreSQL does."""
    seconds, fraction = divmod(micro, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text
