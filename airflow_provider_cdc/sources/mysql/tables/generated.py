"""VIRTUAL columns: whether every session sees the same value.

A virtual column is computed whenever it is read, with the settings of whoever reads. The log holds what the writer's
session computed, a SELECT of ours what ours does. Where the two may differ, a row that the rewind puts back would not
have the value that the rows around it have. Time zones are the common cause (``DATE(ts)`` of a TIMESTAMP), but also
``sql_mode`` (what text is a date, how long a CHAR is, what escapes in LIKE), ``lc_time_names``,
``div_precision_increment``, and the collation of the connection.

So an expression is allowed only if all that it is made of is known to mean the same in every session; what is not
known does not pass. A STORED column is one value, computed once: the log and a SELECT show the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import Problem

_TOKEN = re.compile(
    r"""\s*(?:`(?P<column>(?:[^`]|``)*)`
    | (?P<text>(?:_\w+\s*)?\\'[^'\\]*\\')
    | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?\b|0x[0-9a-f]+\b)
    | (?P<word>[a-z_]\w*)
    | (?P<sign><=>|<>|<=|>=|!=|<<|>>|[-+*/%(),=<>&|^~]))""",
    re.VERBOSE | re.IGNORECASE,
)
_COMPARISONS = frozenset(["=", "<=>", "<>", "!=", "<", ">", "<=", ">=", "between", "nullif", "in", "case of"])
"""CASE OF stands for a CASE that compares."""

_OF_NUMBERS = frozenset(
    """
    and or not xor true false null is if ifnull coalesce isnull case when then else end between nullif in div mod abs
    sign floor ceiling ceil round truncate cast as signed unsigned decimal double bit_count
""".split()
) | {"case of"}
_OF_TEXTS = frozenset(
    """
    concat concat_ws lower upper lcase ucase length char_length character_length octet_length bit_length left right
    substr substring substring_index trim ltrim rtrim both leading trailing from replace reverse repeat lpad rpad hex
    unhex sha sha1 sha2 md5 crc32 json_extract json_unquote json_length json_type json_valid json_keys json_contains
    json_contains_path char charset utf8mb4 utf8mb3 latin1 ascii binary json
""".split()
)
_OF_TIMES = frozenset(["hour", "minute", "second", "microsecond"])
_OF_DATES = frozenset(["year", "month", "dayofmonth", "dayofyear", "quarter", "to_days"])
_BOUNDED = _OF_NUMBERS | _OF_TIMES | _OF_DATES | {"date"}

_NUMBERS = frozenset(["tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "year"])
_MOMENTS = frozenset(["date", "datetime", "time"])
_TEXTS = frozenset(["varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"])
_CHOICES = frozenset("if ifnull coalesce case when then else end null and or not".split())
_CAST = "cast ( {} as date )"

_Token = tuple[str, str]


def dependent(column: Column, expression: str, columns: Mapping[str, Column], policy: str = "error") -> str | None:
    """Why the value of a virtual column may differ between sessions; None: it does not.

    :param expression: as the information schema has it.
    :param columns: the table's, by name.
    :param policy: what becomes of values that no Arrow type holds.
    """
    tokens = _tokens(expression)
    if tokens is None or any(kind == "column" and text not in columns for kind, text in tokens):
        return "its expression is not understood"
    tokens = _reduced(tokens, columns)
    used = [columns[text] for kind, text in tokens if kind == "column"]
    if _kind(column) == "timestamp":
        return "it is a TIMESTAMP, made of what time_zone says"
    for one in used:
        if _kind(one) == "timestamp":
            return f"{one.name} is a TIMESTAMP, whose value depends on time_zone"
        if _kind(one) == "char":
            return f"{one.name} is a CHAR, whose length depends on sql_mode (PAD_CHAR_TO_FULL_LENGTH)"
    if _kind(column) in _MOMENTS or any(_kind(one) in _MOMENTS for one in used):
        return _of_moments(column, tokens, used, policy)
    return _of_values(tokens, used)


def has_bounded_results(expression: str) -> bool:
    """Whether all that an expression is made of gives numbers, dates, and texts no longer than the stored ones: results
    that ``max_allowed_packet`` cannot leave out.

    :param expression: as the information schema has it.
    """
    tokens = _tokens(expression)
    return tokens is not None and {text for kind, text in tokens if kind == "word"} <= _BOUNDED


def _of_moments(column: Column, tokens: Sequence[_Token], used: Sequence[Column], policy: str) -> str | None:
    """The same, where dates and times are used other than for one of their parts, or come out."""
    same = {one.type for one in used} == {column.type}
    plain = {text for kind, text in tokens if kind == "word"} <= _CHOICES
    if same and plain and all(kind in ("column", "word", "sign", "test") for kind, _ in tokens):
        return None
    spelled = [text if kind != "column" else _kind(used[0]) for kind, text in tokens]
    if column.type == "date" and spelled in (_CAST.format(kind).split() for kind in ("date", "datetime")):
        if policy == "error":
            return None
        return "what a date that no calendar has is cast to depends on sql_mode"
    return "how dates and times are converted depends on sql_mode and time_zone"


def _of_values(tokens: Sequence[_Token], used: Sequence[Column]) -> str | None:
    """The same for numbers and texts."""
    signs = {text for kind, text in tokens if kind == "sign"}
    words = {text for kind, text in tokens if kind == "word"}
    compares = bool((signs | words) & _COMPARISONS)
    if "/" in signs:
        return "the digits of a quotient depend on div_precision_increment"
    unsigned = any("unsigned" in one.type or _kind(one) in ("bit", "year") for one in used)
    if "-" in signs and (
        unsigned
        or words & {"unsigned", "crc32"}
        or signs & {"&", "|", "^", "~", "<<", ">>"}
        or any(kind == "number" and (len(text) > 18 or text.startswith("0x")) for kind, text in tokens)
    ):
        return "the difference of unsigned numbers depends on sql_mode (NO_UNSIGNED_SUBTRACTION)"
    unknown = sorted(words - _OF_NUMBERS - _OF_TEXTS)
    if unknown:
        return f"it uses {unknown[0].upper()}, which may depend on the session"
    if _casts_bytes_to_text(tokens, used):
        return "what bytes that are no text are cast to depends on sql_mode"
    texts = any(kind == "text" for kind, _ in tokens) or any(_kind(one) not in _NUMBERS for one in used)
    if compares and (texts or words & _OF_TEXTS):
        return "how texts that are computed compare depends on the session's collation"
    return None


def _casts_bytes_to_text(tokens: Sequence[_Token], used: Sequence[Column]) -> bool:
    """Whether there is a cast to text, and anything that may be cast there and is neither text nor a number."""
    words = [text if kind == "word" else "" for kind, text in tokens]
    of_char = [words[at - 1] == "as" for at, one in enumerate(tokens) if one == ("word", "char")]
    charsets = [after for word, after in pairwise(words) if word == "charset"]
    if len(of_char) == charsets.count("binary"):
        return False
    return (
        any(_kind(one) not in _NUMBERS | _TEXTS or _kind(one) == "bit" for one in used)
        or "unhex" in words
        or "binary" in charsets
        or not all(of_char)
        or any(kind in ("text", "number") and text.lower().startswith(("_binary", "0x")) for kind, text in tokens)
    )


def _tokens(expression: str) -> list[_Token] | None:
    tokens: list[_Token] = []
    at = 0
    end = len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            return None
        at = match.end()
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind == "column":
            text = text.replace("``", "`")
        elif kind != "text":
            text = text.lower()
        if kind == "word" and tokens and tokens[-1] == ("word", "case") and text != "when":
            tokens[-1] = "word", "case of"
        if kind != "word" and tokens and tokens[-1] == ("word", "case"):
            tokens[-1] = "word", "case of"
        tokens.append((kind, text))
    return tokens


def _reduced(tokens: Sequence[_Token], columns: Mapping[str, Column]) -> list[_Token]:
    """The tokens, with one for each part that is a number and the same in every session: whether a column is NULL, how
    a number, or a text by its own collation, compares with a constant, the parts of a date or time."""
    reduced: list[_Token] = []
    at = 0
    while at < len(tokens):
        size = _test(tokens[at : at + 4], columns) or _part(tokens[at : at + 4], columns)
        reduced.append(("test", "1") if size else tokens[at])
        at += size or 1
    return reduced


def _test(tokens: Sequence[_Token], columns: Mapping[str, Column]) -> int:
    """How many of ``tokens`` are a test of a column; 0 if they do not begin with one."""
    if tokens[0][0] != "column":
        return 0
    words = [text for _, text in tokens[1:]]
    if words[:2] == ["is", "null"]:
        return 3
    if words[:3] == ["is", "not", "null"]:
        return 4
    constant = len(tokens) > 2 and tokens[2][0] in ("text", "number")
    # Otherwise more may belong to the constant.
    ends = len(tokens) < 4 or tokens[3] == ("sign", ")")
    if _kind(columns[tokens[0][1]]) in _MOMENTS | {"timestamp", "char"} or not (constant and ends):
        return 0
    return 3 if tokens[1][0] == "sign" and words[0] in _COMPARISONS else 0


def _part(tokens: Sequence[_Token], columns: Mapping[str, Column]) -> int:
    """How many of ``tokens`` are a part of a date or time, such as ``year(`d`)``; 0 if they do not begin with one."""
    if len(tokens) < 4 or (tokens[1], tokens[3]) != (("sign", "("), ("sign", ")")) or tokens[2][0] != "column":
        return 0
    kind = _kind(columns[tokens[2][1]])
    # Of a TIME, the year is that of today.
    parts = {"date": _OF_DATES, "datetime": _OF_DATES | _OF_TIMES, "time": _OF_TIMES}.get(kind, frozenset[str]())
    return 4 if tokens[0][1] in parts else 0


def _kind(column: Column) -> str:
    match = re.match(r"[a-z]+", column.type)
    return match[0] if match else ""


def generated_problems(table: Table, expressions: Mapping[str, str]) -> Iterable[Problem]:
    """The virtual columns of ``table`` that cannot be copied.

    :param expressions: of each generated column, as the information schema has it.
    """
    columns = {column.name: column for column in table.columns}
    for column in table.columns:
        if column.details.get("generated") != "virtual":
            continue
        reason = dependent(column, expressions.get(column.name, ""), columns, table.options.unrepresentable)
        if reason is not None:
            yield Problem(
                f"{table.name}.{column.name}",
                f"its value is VIRTUAL and may differ between sessions: {reason}",
                "make the column STORED, drop it, or leave the table out",
                str(table.name),
            )
