"""Evaluates a condition on rows with Arrow. The result for each row is true, false or unknown, as in SQL.

Text is compared by code point. Floating-point numbers are compared as in IEEE 754 (a NaN is not equal to any number).
All other types are compared by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.filters.literals import value_of
from airflow_provider_cdc.core.filters.syntax import AND, CONSTANT, IN, IS_NULL, IS_TRUE, LIKE, NOT, OR, Term

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
