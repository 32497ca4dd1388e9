"""The syntax tree of a condition on one row. `core.filters.parser` parses it, `core.filters.evaluator` evaluates it.

A condition depends only on a row's published values: not on the time, a collation, or a session's settings. So a row
that was read and an equal row that was restored from the log have the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

AND, OR, NOT = "AND", "OR", "NOT"
IN, LIKE, IS_NULL, IS_TRUE, CONSTANT = "IN", "LIKE", "IS NULL", "IS TRUE", "CONSTANT"
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")

NUMBER, TEXT, DATE, TIMESTAMP, BOOLEAN = "number", "text", "date", "timestamp", "boolean"

_BINDS = {OR: 1, AND: 2, NOT: 3}


@dataclass(frozen=True)
class Literal:
    """A value as it is written in the condition. ``kind`` is one of `NUMBER`, `TEXT`, `DATE`, `TIMESTAMP` and
    `BOOLEAN`. ``text`` is the text between the quotes, the number with its sign, or ``TRUE`` or ``FALSE``."""

    kind: str
    text: str

    def __str__(self) -> str:
        if self.kind in (NUMBER, BOOLEAN):
            return self.text
        keyword = "" if self.kind == TEXT else f"{self.kind.upper()} "
        return f"{keyword}{_quoted(self.text, chr(39))}"


@dataclass(frozen=True)
class Term:
    """A condition, or a part of one, which is true, false or unknown for a row, as in SQL.

    ``op`` is one of:

    - `AND`, `OR` (of two or more ``terms``), `NOT` (of one term);
    - the `COMPARISONS` and `LIKE` (of ``column`` with one literal), `IN` (with any of the ``literals``), `IS_NULL`;
    - `IS_TRUE` (a boolean ``column`` without a comparison: unknown if it is null);
    - `CONSTANT`, whose literal is a boolean.

    ``escape`` is the character after which `LIKE` takes the next character literally. ``at`` is the offset of the term.
    """

    op: str
    column: str = ""
    literals: tuple[Literal, ...] = ()
    terms: tuple[Term, ...] = ()
    escape: str = ""
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Return the canonical text of the condition. Different conditions have different texts."""
        return _text(self, 0)

    def leaves(self) -> Iterator[Term]:
        """Yield the terms that contain no other terms."""
        if not self.terms:
            yield self
        for term in self.terms:
            yield from term.leaves()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the condition, without duplicates."""
        return tuple(dict.fromkeys(leaf.column for leaf in self.leaves() if leaf.column))


def _text(term: Term, around: int) -> str:
    binds = _BINDS.get(term.op, 4)
    if term.op == NOT:
        text = f"NOT {_text(term.terms[0], binds)}"
    elif term.terms:
        text = f" {term.op} ".join(_text(operand, binds) for operand in term.terms)
    else:
        text = _leaf(term)
    # Put parentheses around an AND within an AND, and around an OR within an OR, too. A NOT within a NOT is written
    # without parentheses.
    return f"({text})" if term.terms and binds <= around and not binds == around == _BINDS[NOT] else text


def _leaf(term: Term) -> str:
    column = _quoted(term.column, '"')
    if term.op == CONSTANT:
        return str(term.literals[0])
    if term.op == IS_TRUE:
        return column
    if term.op == IS_NULL:
        return f"{column} IS NULL"
    if term.op == IN:
        return f"{column} IN ({', '.join(map(str, term.literals))})"
    escape = f" ESCAPE {_quoted(term.escape, chr(39))}" if term.escape else ""
    return f"{column} {term.op} {term.literals[0]}{escape}"


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark
