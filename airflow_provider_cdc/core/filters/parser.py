"""Parses the text of a condition: the subset of SQL that docs/conditions.md describes, and nothing beyond it.

sqlglot parses the text, but accepts much more than this subset. So the tokens are checked against a list before
parsing, and the tree is checked against another list afterwards. All other text is rejected with an error that names
the place. Words and literals are also counted: the text is rejected if a word or literal is missing from the tree, or
is different in the tree.

A text literal is in single quotes. A column's name is in double quotes, in backticks, or unquoted. A quote within
quotes is doubled. A backslash is an ordinary character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp


# The syntax tree of a condition on one row. `core.filters.parser` parses it, `core.filters.evaluator` evaluates it.
#
# A condition depends only on a row's published values: not on the time, a collation, or a session's settings. So a row
# that was read and an equal row that was restored from the log have the same result.


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


MOST_CHARACTERS, MOST_TERMS, MOST_DEPTH = 20_000, 2_000, 20
HINT = (
    "write comparisons (=, <>, <, <=, >, >=), IN, BETWEEN, LIKE and IS [NOT] NULL of a column with literals, "
    "combined by AND, OR, NOT and parentheses; docs/conditions.md describes the syntax"
)

_PUNCTUATION = {"(", ")", ",", "=", "<>", "!=", "<", "<=", ">", ">=", "-", "+"}
_STRING, _NAME, _NUMERAL = "STRING", "IDENTIFIER", "NUMBER"
"""sqlglot's names of token types."""
_RESERVED = {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
_TYPES = {"DATE", "TIMESTAMP"}
_BEFORE_PARENTHESIS = {"AND", "OR", "NOT", "IN"}
_WORD = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"\d{1,100}(\.\d{0,100})?([eE][+-]?\d{1,3})?", re.ASCII)
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERAND, _SIGN, _COMPARISON, _END = "operand", "sign", "comparison", "end"
_TERM = frozenset({_OPERAND, _SIGN, "NOT", "("})
_REST = frozenset({_COMPARISON, ")", ",", _END, *(_RESERVED - {"NULL", "TRUE", "FALSE"})})
_FOLLOWS = {
    **dict.fromkeys((_OPERAND, ")"), _REST),
    _SIGN: {_SIGN},
    "NOT": {_OPERAND, _SIGN, "NOT", "(", "IN", "BETWEEN", "LIKE"},
    "IN": {_OPERAND, "("},
    "IS": {_OPERAND, "NOT"},
    "(": _TERM | {")"},
    **dict.fromkeys(("AND", "OR", _COMPARISON, "BETWEEN", "LIKE", "ESCAPE", ","), _TERM),
}
"""The kinds of tokens that may follow each kind. sqlglot also accepts ``a BETWEEN 1 2``, ``a IN (, 2)``, ``+ a``, …"""


def parse(text: str) -> Term:
    """Parse ``text``.

    :raises ConfigurationError: the text is not a condition of this language. The error's ``where`` names the place.
    """
    # Imported here, because the import is slow and most runs copy whole tables.
    from sqlglot.errors import SqlglotError

    if not text.strip():
        raise ConfigurationError(
            "the condition is empty", where="column 1", hint="clear `Table.where` to copy all rows"
        )
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(
            f"the condition has more than {MOST_CHARACTERS:,} characters",
            hint="copy more rows, and filter when reading",
        )
    try:
        tokens = _dialect().tokenize(text)
    except SqlglotError as error:
        raise ConfigurationError(f"the condition cannot be parsed: {_first_line(error)}", hint=HINT) from None
    leaves = _check_tokens(text, tokens)
    try:
        statements = _dialect().parser().parse(tokens, text)
    except RecursionError:
        raise ConfigurationError("the condition is nested too deeply", hint="write it with fewer parentheses") from None
    except SqlglotError as error:
        first_error = (error.errors or [{}])[0] if hasattr(error, "errors") else {}
        place = f"line {first_error['line']}, column {first_error['col']}" if first_error.get("line") else ""
        raise ConfigurationError("the condition cannot be parsed from here on", where=place, hint=HINT) from None
    reader = _Reader(text)
    if len(statements) != 1 or statements[0] is None:
        raise ConfigurationError("the text is not exactly one condition", hint=HINT)
    term = reader.term(statements[0], 0)
    if sorted(reader.seen) != leaves:
        missing = next((at for at in leaves if at not in reader.seen), 0)
        raise _refused(text, missing, "this is not allowed here")
    return term


def place_in(text: str, at: int) -> str:
    """Describe the offset ``at`` in ``text`` by its line and column."""
    before = text[:at]
    return f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}"


@cache
def _dialect() -> Any:
    from sqlglot import Dialect, tokens

    class CdcCondition(Dialect):
        class Tokenizer(tokens.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012
            IDENTIFIERS = ['"', "`"]  # noqa: RUF012
            IDENTIFIER_ESCAPES = ['"', "`"]  # noqa: RUF012

    return CdcCondition()


def _check_tokens(text: str, tokens: Sequence[Any]) -> list[int]:
    """Reject tokens that are not part of the language; return the offsets of names and literals."""
    leaves = []
    depth = 0
    for number, token in enumerate(tokens):
        before, after = (tokens[at] if 0 <= at < len(tokens) else None for at in (number - 1, number + 1))
        kind, word = token.token_type.name, token.text.upper()
        if token.comments:
            raise _refused(text, token.start, "there is a comment before or after this")
        if kind in (_STRING, _NAME):
            if _unquoted(text[token.start : token.end + 1]) != token.text:
                raise _refused(text, token.start, "this cannot be parsed: double the quotes within quotes")
            leaves.append(token.start)
        elif kind == _NUMERAL:
            if not _NUMBER.fullmatch(token.text):
                raise _refused(text, token.start, "this number is too long or has an unsupported form")
            if after is not None and after.start == token.end + 1 and _WORD.match(after.text):
                raise _refused(text, token.start, "this is not a number")
            leaves.append(token.start)
        elif not (word in _PUNCTUATION or _WORD.fullmatch(token.text)):
            raise _refused(text, token.start, "this is not part of the language of conditions")
        elif word in _PUNCTUATION:
            depth += (word == "(") - (word == ")")
            if depth > MOST_DEPTH:
                raise _refused(text, token.start, f"the condition is nested more than {MOST_DEPTH} levels deep")
            if word == "," and after is not None and after.text == ")":
                raise _refused(text, token.start, "nothing follows this comma")
        elif word not in _RESERVED and not (word in _TYPES and after is not None and after.token_type.name == _STRING):
            leaves.append(token.start)
        if (
            after is not None
            and after.text == "("
            and kind not in (_NAME, _STRING)
            and _WORD.fullmatch(token.text)
            and word not in _BEFORE_PARENTHESIS
        ):
            raise _refused(text, token.start, f"{token.text}(…) is a function, and functions are not supported")
        if before is not None and not _may_follow(before, token):
            raise _refused(text, token.start, f"this cannot come after {before.text[:30]}")
        if after is None and _END not in _FOLLOWS[_kind(token)]:
            raise _refused(text, token.start, "nothing follows this")
    if len(leaves) > MOST_TERMS:
        raise ConfigurationError(f"the condition has more than {MOST_TERMS:,} names and values", hint=HINT)
    return sorted(leaves)


def _kind(token: Any) -> str:
    """Return the kind of a token. The kind determines which tokens may come before and after the token."""
    word = token.text.upper()
    if token.token_type.name in (_STRING, _NAME, _NUMERAL) or word not in _FOLLOWS.keys() | _PUNCTUATION:
        return _OPERAND
    return word if word in _FOLLOWS else _SIGN if word in ("+", "-") else _COMPARISON


def _may_follow(before: Any, token: Any) -> bool:
    name = token.token_type.name
    typed = name == _STRING and before.token_type.name != _NAME and before.text.upper() in _TYPES
    return typed or (name == _NUMERAL and _kind(before) == _SIGN) or _kind(token) in _FOLLOWS[_kind(before)]


class _Reader:
    """Converts sqlglot's tree to terms. ``seen`` has the offsets of the names and literals that were converted."""

    def __init__(self, text: str) -> None:
        self.seen: list[int] = []
        self._text = text

    def term(self, node: exp.Expr, depth: int) -> Term:
        """Return the term of ``node``.

        :raises ConfigurationError: the node is not part of the language.
        """
        name = type(node).__name__
        read = _READ.get(name)
        if depth > 2 * MOST_DEPTH:
            raise self.refused(node, "the condition is nested too deeply")
        if read is None or node.comments:
            raise self.refused(node, f"{_shown(node)} is not part of the language of conditions")
        return read(self, node, depth)

    def several(self, node: exp.Expr, depth: int) -> Term:
        kind, parts = type(node), []
        left = node
        while isinstance(left, kind):
            self.only(left, "this", "expression")
            parts.append(left.expression)
            left = left.this
        terms = [self.term(part, depth + 1) for part in [left, *reversed(parts)]]
        # AND within AND, and OR within OR, mean the same without parentheses.
        op = AND if kind.__name__ == "And" else OR
        flat = [operand for term in terms for operand in (term.terms if term.op == op else (term,))]
        return Term(op, terms=tuple(flat), at=flat[0].at)

    def negation(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this")
        return _negated(self.term(node.this, depth + 1))

    def parenthesis(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this")
        return self.term(node.this, depth + 1)

    def comparison(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this", "expression")
        op = _COMPARED[type(node).__name__]
        left, right = node.this, node.expression
        if type(left).__name__ != "Column" and type(right).__name__ == "Column":
            literal = self.literal(left)
            column, at = self.column(right)
            return Term(_FLIPPED[op], column, (literal,), at=at)
        column, at = self.column(left)
        return Term(op, column, (self.literal(right),), at=at)

    def between(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this", "low", "high")
        column, at = self.column(node.this)
        low, high = self.literal(node.args["low"]), self.literal(node.args["high"])
        return Term(AND, terms=(Term(">=", column, (low,), at=at), Term("<=", column, (high,), at=at)), at=at)

    def membership(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this", "expressions")
        column, at = self.column(node.this)
        if not node.expressions:
            raise self.refused(node, "IN needs at least one literal")
        return Term(IN, column, tuple(map(self.literal, node.expressions)), at=at)

    def like(self, node: exp.Expr, depth: int) -> Term:
        escape = ""
        if type(node).__name__ == "Escape":
            self.only(node, "this", "expression")
            node, given = node.this, node.expression
            if type(node).__name__ != "Like":
                raise self.refused(node, "ESCAPE is allowed only after the pattern of LIKE")
        else:
            given = None
        self.only(node, "this", "expression", "negate")
        column, at = self.column(node.this)
        pattern = self.literal(node.expression)
        if given is not None:
            pattern_literal = self.literal(given)
            escape = pattern_literal.text
            if pattern_literal.kind != TEXT or len(escape) != 1:
                raise self.refused(given, "ESCAPE needs exactly one character")
        if pattern.kind != TEXT:
            raise self.refused(node.expression, "LIKE needs a pattern in single quotes")
        if what := wrong_pattern(pattern.text, escape):
            raise self.refused(node.expression, what)
        term = Term(LIKE, column, (pattern,), escape=escape, at=at)
        return _negated(term) if node.args.get("negate") else term

    def null_test(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this", "expression")
        column, at = self.column(node.this)
        if type(node.expression).__name__ != "Null":
            raise self.refused(node, "IS may be followed only by NULL or NOT NULL")
        return Term(IS_NULL, column, at=at)

    def truth(self, node: exp.Expr, depth: int) -> Term:
        column, at = self.column(node)
        return Term(IS_TRUE, column, at=at)

    def constant(self, node: exp.Expr, depth: int) -> Term:
        return Term(CONSTANT, literals=(Literal(BOOLEAN, "TRUE" if node.this else "FALSE"),))

    def column(self, node: exp.Expr) -> tuple[str, int]:
        """Return a column's name and its offset."""
        if type(node).__name__ != "Column" or type(node.this).__name__ != "Identifier":
            raise self.refused(node, f"expected a column in place of {_shown(node)}; the other side must be a literal")
        self.only(node, "this")
        self.only(node.this, "this", "quoted")
        at = int(node.this.meta["start"])
        self.seen.append(at)
        return str(node.this.this), at

    def literal(self, node: exp.Expr) -> Literal:
        """Return a literal."""
        name = type(node).__name__
        if name == "Null":
            raise self.refused(node, "nothing is equal to NULL: write IS NULL or IS NOT NULL")
        if name == "Boolean":
            return Literal(BOOLEAN, "TRUE" if node.this else "FALSE")
        if name == "Neg":
            self.only(node, "this")
            value = self.literal(node.this)
            if value.kind != NUMBER or value.text.startswith("-"):
                raise self.refused(node, "arithmetic is not supported")
            return Literal(NUMBER, f"-{value.text}")
        if name == "Cast":
            kind = str(node.args["to"].this.name)
            if {key for key, value in node.args.items() if value} - {"this", "to", "_type"} or kind not in _TYPES:
                raise self.refused(node, f"{_shown(node)} is not part of the language of conditions")
            return Literal(DATE if kind == "DATE" else TIMESTAMP, self.literal(node.this).text)
        if name != "Literal" or node.comments:
            raise self.refused(node, f"expected a literal in place of {_shown(node)}")
        self.only(node, "this", "is_string")
        self.seen.append(int(node.meta["start"]))
        return Literal(TEXT if node.args["is_string"] else NUMBER, str(node.this))

    def only(self, node: exp.Expr, *known: str) -> None:
        """Check that a node has no arguments except ``known``, and no comments."""
        if node.comments or {key for key, value in node.args.items() if value} - {*known}:
            raise self.refused(node, f"{_shown(node)} is not part of the language of conditions")

    def refused(self, node: exp.Expr, what: str) -> ConfigurationError:
        at: exp.Expr | None = node
        while at is not None:
            if starts := [int(one.meta["start"]) for one in at.walk() if "start" in one.meta]:
                return _refused(self._text, min(starts), what)
            # The node of a word such as NULL has no offset, so use the offset of its parent node.
            at = at.parent
        return ConfigurationError(what, hint=HINT)


_READ: dict[str, Callable[[_Reader, Any, int], Term]] = {
    "And": _Reader.several,
    "Or": _Reader.several,
    "Not": _Reader.negation,
    "Paren": _Reader.parenthesis,
    "Between": _Reader.between,
    "In": _Reader.membership,
    "Like": _Reader.like,
    "Escape": _Reader.like,
    "Is": _Reader.null_test,
    "Column": _Reader.truth,
    "Boolean": _Reader.constant,
    **dict.fromkeys(("EQ", "NEQ", "LT", "LTE", "GT", "GTE"), _Reader.comparison),
}
_COMPARED = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}


def wrong_pattern(pattern: str, escape: str) -> str:
    """Return the problem with a LIKE pattern; empty: no problem."""
    if len(pattern) > 1000:
        return "the pattern has more than 1,000 characters"
    if not escape:
        # MySQL and PostgreSQL treat a backslash as the escape character, but standard SQL does not.
        return "a pattern with a backslash needs ESCAPE, for example ESCAPE '!'" if "\\" in pattern else ""
    at = 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in ("%", "_", escape):
                return f"{escape!r} must be followed by %, _ or {escape!r} itself"
        at += 1
    return ""


def _negated(term: Term) -> Term:
    return Term(NOT, terms=(term,), at=term.at)


def _unquoted(text: str) -> str | None:
    """Return the content of the quoted ``text``; None: ``text`` is not exactly one quoted text."""
    mark = text[:1]
    inner = text[1:-1].replace(mark * 2, "")
    return text[1:-1].replace(mark * 2, mark) if len(text) > 1 and text[-1] == mark and mark not in inner else None


def _shown(node: exp.Expr) -> str:
    try:
        text = node.sql()
    except Exception:
        # This text is used only in a message.
        text = type(node).__name__
    return text if len(text) <= 60 else f"{text[:57]}…"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def _refused(text: str, at: int, what: str) -> ConfigurationError:
    return ConfigurationError(f"{what}: {text[at : at + 30]!r}", where=place_in(text, at), hint=HINT)
