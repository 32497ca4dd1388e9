"""The part of a condition that the server itself evaluates, so that fewer rows are sent.

This only saves work. For every row that the server sends, `core.filters` decides whether the row fulfils the condition.
So the server must send all rows for which the condition is true, and may also send other rows. Comparisons whose result
may differ between the server and Arrow (text, because of collations; floating point) are not pushed down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.core.filters.syntax import AND, COMPARISONS, CONSTANT, IN, IS_NULL, NOT, OR, Literal, Term


@dataclass(frozen=True)
class Pushable:
    """A column that the server compares in the same way as Arrow.

    ``name`` is the quoted name. ``spelt`` is a function that returns a literal in SQL, or None if this literal is not
    pushed down. ``odd`` is true if the column may have values that no Arrow type holds. Such values count as null in
    this package, but not on the server. ``nullable`` is true if the column may have nulls. ``schema`` is the schema of
    the column's operators (PostgreSQL), or empty if no schema is necessary.
    """

    name: str
    spelt: Callable[[Literal], str | None]
    odd: bool
    nullable: bool
    schema: str = ""

    def compared(self, sign: str, values: Sequence[str]) -> str:
        """Return the SQL condition that compares the column with one value, or with several values (`IN`)."""
        listed = ", ".join(values)
        if not self.schema:
            return f"{self.name} IN ({listed})" if sign == IN else f"{self.name} {sign} {listed}"
        if sign == IN:
            return f"{self.name} OPERATOR({self.schema}.=) ANY (ARRAY[{listed}])"
        return f"{self.name} OPERATOR({self.schema}.{sign}) {listed}"


Columns = Callable[[str], Pushable | None]
"""A function that returns the column with the given name, or None if comparisons of this column are not pushed down."""


def pushed(term: Term | None, columns: Columns) -> str:
    """Return an SQL condition that is true for every row for which ``term`` is true. Empty: no part of ``term`` can be
    pushed down."""
    return "" if term is None else _where_true(term, columns) or ""


def span(term: Term | None, column: str, value: Callable[[Literal], Any]) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column in rows for which ``term`` is true, according to the
    comparisons in ``term``. None: there is no limit on this side. Use the result only for estimates.

    :param value: a function that converts a literal to a value that can be compared. If it returns None, the literal is
        ignored.
    """
    if term is None:
        return None, None
    if term.op in (AND, OR):
        lows, highs = zip(*(span(operand, column, value) for operand in term.terms), strict=True)
        least, greatest = (max, min) if term.op == AND else (min, max)
        return _ends(lows, least, all_of=term.op == OR), _ends(highs, greatest, all_of=term.op == OR)
    if term.column != column or term.op not in ("=", "<", "<=", ">", ">=", IN):
        return None, None
    values = [value(literal) for literal in term.literals]
    if None in values:
        return None, None
    return None if term.op in ("<", "<=") else min(values), None if term.op in (">", ">=") else max(values)


def _ends(found: Sequence[Any], outermost: Callable[[list[Any]], Any], *, all_of: bool) -> Any:
    known_values = [end for end in found if end is not None]
    return outermost(known_values) if known_values and not (all_of and len(known_values) < len(found)) else None


def _where_true(term: Term, columns: Columns) -> str | None:
    """Return an SQL condition that is true for every row for which ``term`` is true. None: no such condition can be
    pushed down."""
    if term.op == AND:
        conditions = [
            condition for condition in (_where_true(part, columns) for part in term.terms) if condition is not None
        ]
        return _joined("AND", conditions) if conditions else None
    if term.op == OR:
        every = [_where_true(part, columns) for part in term.terms]
        return None if None in every else _joined("OR", [condition for condition in every if condition is not None])
    if term.op == NOT:
        return _not(_where_false(term.terms[0], columns))
    if term.op == CONSTANT:
        return None if term.literals[0].text == "TRUE" else "1 = 0"
    column = columns(term.column)
    if term.op == IS_NULL and (column is None or column.odd):
        # A value that cannot be represented counts as null in this package, but not on the server.
        return None
    return _leaf(term, column)


def _where_false(term: Term, columns: Columns) -> str | None:
    """Return an SQL condition that is false (and not unknown) for every row for which ``term`` is false. None: no such
    condition can be pushed down."""
    if term.op == AND:
        every = [_where_false(part, columns) for part in term.terms]
        return None if None in every else _joined("AND", [condition for condition in every if condition is not None])
    if term.op == OR:
        conditions = [
            condition for condition in (_where_false(part, columns) for part in term.terms) if condition is not None
        ]
        return _joined("OR", conditions) if conditions else None
    if term.op == NOT:
        return _not(_where_true(term.terms[0], columns))
    if term.op == CONSTANT:
        return None if term.literals[0].text == "TRUE" else "1 = 0"
    return _leaf(term, columns(term.column))


def _leaf(term: Term, column: Pushable | None) -> str | None:
    if column is None:
        return None
    if term.op == IS_NULL:
        return f"{column.name} IS NULL" if column.nullable else None
    if term.op not in (*COMPARISONS, IN):
        return None
    spelt = [column.spelt(literal) for literal in term.literals]
    if None in spelt:
        return None
    return column.compared(term.op, [value for value in spelt if value is not None])


def _not(condition: str | None) -> str | None:
    return None if condition is None else f"NOT ({condition})"


def _joined(op: str, conditions: list[str]) -> str:
    return conditions[0] if len(conditions) == 1 else f" {op} ".join(f"({condition})" for condition in conditions)
