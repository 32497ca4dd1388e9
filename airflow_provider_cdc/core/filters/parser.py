"""Reads a condition from its text: the part of SQL that docs/filters.md describes, and nothing beyond it.

sqlglot reads it, and takes far more than what is meant here: so its tokens are compared with a list before, and its
tree with another one after that. What is on neither list is refused, with its place. Words and literals are counted: if
the tree has lost one, or read one as something else, the text is refused, too.

Text stands in single quotes, a column's name in double quotes or backticks, or in none; a quote within is doubled. A
backslash is a character like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.filters.syntax import (
    AND,
    BOOLEAN,
    CONSTANT,
    DATE,
    IN,
    IS_NULL,
    IS_TRUE,
    LIKE,
    NOT,
    NUMBER,
    OR,
    TEXT,
    TIMESTAMP,
    Literal,
    Term,
)
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp

MOST_CHARACTERS, MOST_TERMS, MOST_DEPTH = 20_000, 2_000, 20
HINT = (
    "write comparisons (=, <>, <, <=, >, >=), IN, BETWEEN, LIKE and IS [NOT] NULL of a column with literals, put "
    "together by AND, OR, NOT and parentheses: docs/filters.md has all of it"
)

_PUNCTUATION = {"(", ")", ",", "=", "<>", "!=", "<", "<=", ">", ">=", "-", "+"}
_STRING, _NAME, _NUMERAL = "STRING", "IDENTIFIER", "NUMBER"
"""What sqlglot calls tokens."""
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
"""What may come after what. sqlglot reads ``a BETWEEN 1 2``, ``a IN (, 2)``, ``+ a``, and some versions ``a NOT``."""


def parse(text: str) -> Term:
    """The condition that ``text`` says.

    :raises ConfigurationError: it is none, or says something that is not part of the language; ``where`` has its place.
    """
    # It takes a while, and most runs copy whole tables.
    from sqlglot.errors import SqlglotError

    if not text.strip():
        raise ConfigurationError("the condition is empty", where="column 1", hint="leave it out to copy all rows")
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(
            f"the condition has more than {MOST_CHARACTERS:,} characters", hint="copy more, and filter when reading"
        )
    try:
        tokens = _dialect().tokenize(text)
    except SqlglotError as error:
        raise ConfigurationError(f"the condition cannot be read: {_first_line(error)}", hint=HINT) from None
    leaves = _check_tokens(text, tokens)
    try:
        statements = _dialect().parser().parse(tokens, text)
    except RecursionError:
        raise ConfigurationError("the condition is nested too deeply", hint="write it with fewer parentheses") from None
    except SqlglotError as error:
        first_error = (error.errors or [{}])[0] if hasattr(error, "errors") else {}
        place = f"line {first_error['line']}, column {first_error['col']}" if first_error.get("line") else ""
        raise ConfigurationError("the condition cannot be read from here on", where=place, hint=HINT) from None
    reader = _Reader(text)
    if len(statements) != 1 or statements[0] is None:
        raise ConfigurationError("it is not one condition", hint=HINT)
    term = reader.term(statements[0], 0)
    if sorted(reader.seen) != leaves:
        missing = next((at for at in leaves if at not in reader.seen), 0)
        raise _refused(text, missing, "this is not understood here")
    return term


def place_in(text: str, at: int) -> str:
    """Where in ``text`` the character number ``at`` stands, in words."""
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
    """Refuse what is not part of the language; return where names and literals begin."""
    leaves = []
    depth = 0
    for number, token in enumerate(tokens):
        before, after = (tokens[at] if 0 <= at < len(tokens) else None for at in (number - 1, number + 1))
        kind, word = token.token_type.name, token.text.upper()
        if token.comments:
            raise _refused(text, token.start, "there is a comment before or after this")
        if kind in (_STRING, _NAME):
            if _unquoted(text[token.start : token.end + 1]) != token.text:
                raise _refused(text, token.start, "this cannot be read: double the quotes that stand within quotes")
            leaves.append(token.start)
        elif kind == _NUMERAL:
            if not _NUMBER.fullmatch(token.text):
                raise _refused(text, token.start, "this is not a number that can be compared with")
            if after is not None and after.start == token.end + 1 and _WORD.match(after.text):
                raise _refused(text, token.start, "this is not a number")
            leaves.append(token.start)
        elif not (word in _PUNCTUATION or _WORD.fullmatch(token.text)):
            raise _refused(text, token.start, "this is not part of the language of conditions")
        elif word in _PUNCTUATION:
            depth += (word == "(") - (word == ")")
            if depth > MOST_DEPTH:
                raise _refused(text, token.start, f"it is nested more than {MOST_DEPTH} levels deep")
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
            raise _refused(text, token.start, f"{token.text}(…) is a function, and there are none")
        if before is not None and not _may_follow(before, token):
            raise _refused(text, token.start, f"this cannot come after {before.text[:30]}")
        if after is None and _END not in _FOLLOWS[_kind(token)]:
            raise _refused(text, token.start, "nothing follows this")
    if len(leaves) > MOST_TERMS:
        raise ConfigurationError(f"the condition has more than {MOST_TERMS:,} names and values", hint=HINT)
    return sorted(leaves)


def _kind(token: Any) -> str:
    """What a token is, as far as it matters beside which others it stands."""
    word = token.text.upper()
    if token.token_type.name in (_STRING, _NAME, _NUMERAL) or word not in _FOLLOWS.keys() | _PUNCTUATION:
        return _OPERAND
    return word if word in _FOLLOWS else _SIGN if word in ("+", "-") else _COMPARISON


def _may_follow(before: Any, token: Any) -> bool:
    name = token.token_type.name
    typed = name == _STRING and before.token_type.name != _NAME and before.text.upper() in _TYPES
    return typed or (name == _NUMERAL and _kind(before) == _SIGN) or _kind(token) in _FOLLOWS[_kind(before)]


class _Reader:
    """Makes terms of sqlglot's tree, and notes where the names and literals begin that it has ``seen``."""

    def __init__(self, text: str) -> None:
        self.seen: list[int] = []
        self._text = text

    def term(self, node: exp.Expr, depth: int) -> Term:
        """The term that ``node`` stands for.

        :raises ConfigurationError: it is not part of the language.
        """
        name = type(node).__name__
        read = _READ.get(name)
        if depth > 2 * MOST_DEPTH:
            raise self.refused(node, "it is nested too deeply")
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
        # What stood in parentheses of its own is the same without them.
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
            raise self.refused(node, "IN takes one literal at least")
        return Term(IN, column, tuple(map(self.literal, node.expressions)), at=at)

    def like(self, node: exp.Expr, depth: int) -> Term:
        escape = ""
        if type(node).__name__ == "Escape":
            self.only(node, "this", "expression")
            node, given = node.this, node.expression
            if type(node).__name__ != "Like":
                raise self.refused(node, "ESCAPE follows the pattern of a LIKE only")
        else:
            given = None
        self.only(node, "this", "expression", "negate")
        column, at = self.column(node.this)
        pattern = self.literal(node.expression)
        if given is not None:
            pattern_literal = self.literal(given)
            escape = pattern_literal.text
            if pattern_literal.kind != TEXT or len(escape) != 1:
                raise self.refused(given, "ESCAPE takes one character")
        if pattern.kind != TEXT:
            raise self.refused(node.expression, "LIKE takes a pattern in single quotes")
        if what := wrong_pattern(pattern.text, escape):
            raise self.refused(node.expression, what)
        term = Term(LIKE, column, (pattern,), escape=escape, at=at)
        return _negated(term) if node.args.get("negate") else term

    def null_test(self, node: exp.Expr, depth: int) -> Term:
        self.only(node, "this", "expression")
        column, at = self.column(node.this)
        if type(node.expression).__name__ != "Null":
            raise self.refused(node, "IS takes NULL or NOT NULL only")
        return Term(IS_NULL, column, at=at)

    def truth(self, node: exp.Expr, depth: int) -> Term:
        column, at = self.column(node)
        return Term(IS_TRUE, column, at=at)

    def constant(self, node: exp.Expr, depth: int) -> Term:
        return Term(CONSTANT, literals=(Literal(BOOLEAN, "TRUE" if node.this else "FALSE"),))

    def column(self, node: exp.Expr) -> tuple[str, int]:
        """A column's name, and where it stands."""
        if type(node).__name__ != "Column" or type(node.this).__name__ != "Identifier":
            raise self.refused(
                node, f"{_shown(node)} stands where a column has to be, and one side has to be a literal"
            )
        self.only(node, "this")
        self.only(node.this, "this", "quoted")
        at = int(node.this.meta["start"])
        self.seen.append(at)
        return str(node.this.this), at

    def literal(self, node: exp.Expr) -> Literal:
        """A literal."""
        name = type(node).__name__
        if name == "Null":
            raise self.refused(node, "nothing is equal to NULL: write IS NULL or IS NOT NULL")
        if name == "Boolean":
            return Literal(BOOLEAN, "TRUE" if node.this else "FALSE")
        if name == "Neg":
            self.only(node, "this")
            value = self.literal(node.this)
            if value.kind != NUMBER or value.text.startswith("-"):
                raise self.refused(node, "there is no arithmetic")
            return Literal(NUMBER, f"-{value.text}")
        if name == "Cast":
            kind = str(node.args["to"].this.name)
            if {key for key, value in node.args.items() if value} - {"this", "to", "_type"} or kind not in _TYPES:
                raise self.refused(node, f"{_shown(node)} is not part of the language of conditions")
            return Literal(DATE if kind == "DATE" else TIMESTAMP, self.literal(node.this).text)
        if name != "Literal" or node.comments:
            raise self.refused(node, f"{_shown(node)} stands where a literal has to be")
        self.only(node, "this", "is_string")
        self.seen.append(int(node.meta["start"]))
        return Literal(TEXT if node.args["is_string"] else NUMBER, str(node.this))

    def only(self, node: exp.Expr, *known: str) -> None:
        """Make sure that a node says no more than what ``known`` is read of."""
        if node.comments or {key for key, value in node.args.items() if value} - {*known}:
            raise self.refused(node, f"{_shown(node)} is not part of the language of conditions")

    def refused(self, node: exp.Expr, what: str) -> ConfigurationError:
        at: exp.Expr | None = node
        while at is not None:
            if starts := [int(one.meta["start"]) for one in at.walk() if "start" in one.meta]:
                return _refused(self._text, min(starts), what)
            # Words such as NULL have no place of their own.
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
    """What is wrong with a pattern of LIKE; empty: nothing."""
    if len(pattern) > 1000:
        return "the pattern has more than 1,000 characters"
    if not escape:
        # Both databases take it for an escape, and SQL does not.
        return "a pattern with a backslash needs ESCAPE, for example ESCAPE '!'" if "\\" in pattern else ""
    at = 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in ("%", "_", escape):
                return f"after {escape!r} has to come one of %, _ and {escape!r} itself"
        at += 1
    return ""


def _negated(term: Term) -> Term:
    return Term(NOT, terms=(term,), at=term.at)


def _unquoted(text: str) -> str | None:
    """What stands between the quotes of ``text``; None: it is not one text in quotes."""
    mark = text[:1]
    inner = text[1:-1].replace(mark * 2, "")
    return text[1:-1].replace(mark * 2, mark) if len(text) > 1 and text[-1] == mark and mark not in inner else None


def _shown(node: exp.Expr) -> str:
    try:
        text = node.sql()
    except Exception:
        # It is for people only.
        text = type(node).__name__
    return text if len(text) <= 60 else f"{text[:57]}…"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def _refused(text: str, at: int, what: str) -> ConfigurationError:
    return ConfigurationError(f"{what}: {text[at : at + 30]!r}", where=place_in(text, at), hint=HINT)
