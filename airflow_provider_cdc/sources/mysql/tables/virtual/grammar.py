"""Parse expressions of generated columns, as ``information_schema.COLUMNS.GENERATION_EXPRESSION`` shows them.

The server prints an expression from its parsed form, not from the user's text: column names in backquotes, texts with
the name of their character set, every operator in parentheses, functions by one of their names. This grammar accepts
only that form. Everything else raises `NotUnderstood`; the parser never guesses.

A text with a quote or a backslash is not accepted. The server parses the expression again in each session that opens
the table, and with ``sql_mode`` NO_BACKSLASH_ESCAPES a backslash has another meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s*(?:`(?P<column>(?:[^`]|``)+)`
    | (?:(?P<prefix>_\w+|date|time|timestamp)\s*)?\\'(?P<text>[^'\\]*)\\'
    | (?P<hex>0x[0-9a-f]+)\b
    | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])
    | (?P<word>[a-z_]\w*)
    | (?P<sign><=>|<>|<=|>=|!=|<<|>>|\|\||&&|[-+*/%(),=<>&|^~!]))""",
    re.VERBOSE | re.IGNORECASE,
)
_SIGNS = frozenset("= <=> <> != < > <= >= + - * / % & | ^ << >>".split())
_WORDS = frozenset("and or xor div mod like regexp".split())
_CAST_TYPE = re.compile(r"(\w+(?: \w+)?)(?:\((\d+)(?:, ?(\d+))?\))?(?: charset (\w+))?( array)?")
_END = "end", ""
_MOST_DEPTH = 100
"""The maximum depth of nested parentheses. Each level takes several recursive calls, and Python allows 1,000."""


class NotUnderstood(ValueError):
    """The text is not an expression of this grammar."""


@dataclass(frozen=True)
class Node:
    """A part of an expression.

    ``kind``
        ``column``, ``text``, ``hex``, ``number``, ``null`` or ``call``.
    ``name``
        for a column, its name; for a text, the text without quotes; for a number, its digits; for a call, the function
        or operator in lower case.
    ``arguments``
        the arguments of a call. For ``case of``: the compared value, then conditions and results in turn, then the
        result of ELSE. For ``case``: the same arguments without the compared value.
    ``note``
        for a text, its character set (``_utf8mb4``) or ``date``, ``time``, ``timestamp``; for a cast, the type; for
        EXTRACT, TIMESTAMPDIFF and an interval, the unit; for TRIM, the end to trim; for COLLATE, the collation.
    """

    kind: str
    name: str
    arguments: tuple[Node, ...] = ()
    note: str = ""


def parse(expression: str) -> Node:
    """Parse ``expression``.

    :raises NotUnderstood: the expression does not match this grammar.
    """
    tokens = _tokens(expression)
    depth = deepest = 0
    for token in tokens:
        depth += {("sign", "("): 1, ("word", "case"): 1, ("sign", ")"): -1, ("word", "end"): -1}.get(token, 0)
        deepest = max(deepest, depth)
    if deepest > _MOST_DEPTH:
        raise NotUnderstood(f"{deepest} nested parentheses")
    reader = _Reader(tokens)
    node = reader.chain()
    reader.expect(_END)
    return node


_Token = tuple[str, str]


def _tokens(expression: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            raise NotUnderstood(expression[at : at + 20])
        at = match.end()
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind == "text":
            tokens.append(("prefix", (match["prefix"] or "").lower()))
        tokens.append((kind, text.replace("``", "`") if kind == "column" else text if kind == "text" else text.lower()))
    return [*tokens, _END]


def _call(name: str, *arguments: Node, note: str = "") -> Node:
    return Node("call", name, arguments, note)


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, *tokens: _Token) -> bool:
        """Consume ``tokens`` if they are the next tokens. Return whether they were consumed."""
        if tuple(self._tokens[self._at : self._at + len(tokens)]) != tokens:
            return False
        self._at += len(tokens)
        return True

    def expect(self, token: _Token) -> None:
        """Consume ``token``, which must be the next token."""
        if not self._takes(token):
            raise NotUnderstood(f"{self._next[1]!r} instead of {token[1]!r}")

    def chain(self) -> Node:
        """Parse a value and a chain of operators of one kind. The server puts operators of other kinds in
        parentheses."""
        node = self._unary()
        operator = ""
        while True:
            kind, text = self._next
            if (kind, text) in (("word", "and"), ("word", "or"), ("word", "xor")) or (
                kind == "sign" and text in _SIGNS
            ):
                if operator and (operator != text or text in ("-", "/", "%")):
                    raise NotUnderstood(f"{operator} and {text} without parentheses")
                operator = text
            elif operator:
                return node
            following = self._operation(node)
            if following is None:
                return node
            node = following

    def _operation(self, left: Node) -> Node | None:
        """Parse the operator after ``left``, and its other operands. Return None if no operator follows."""
        kind, text = self._next
        if (kind == "sign" and text in _SIGNS) or (kind == "word" and text in _WORDS):
            self._take()
            if self._takes(("word", "interval")):
                amount = self._unary()
                return _call("interval " + text, left, amount, note=self._word())
            right = self._unary()
            if text == "like" and self._takes(("word", "escape")):
                return _call(text, left, right, self._unary())
            return _call(text, left, right)
        if kind != "word":
            return None
        if self._takes(("word", "is")):
            negated = self._takes(("word", "not"))
            what = self._word()
            if what not in ("null", "true", "false", "unknown"):
                raise NotUnderstood(f"IS {what}")
            return _call(f"is{' not' if negated else ''} {what}", left)
        negated = self._takes(("word", "not"))
        if self._takes(("word", "in")):
            found = _call("in", left, *self._list())
        elif self._takes(("word", "between")):
            low = self._unary()
            self.expect(("word", "and"))
            found = _call("between", left, low, self._unary())
        elif self._takes(("word", "collate")):
            return _call("collate", left, note=self._word())
        elif self._takes(("word", "member"), ("word", "of")):
            return _call("member of", left, *self._list())
        elif negated:
            raise NotUnderstood("NOT")
        else:
            return None
        return _call("not", found) if negated else found

    def _unary(self) -> Node:
        kind, text = self._next
        if (kind, text) in (("sign", "-"), ("sign", "~"), ("sign", "!"), ("word", "not")):
            self._take()
            name = {"-": "negate", "~": "~"}.get(text, "not")
            return _call(name, self._unary())
        return self._primary()

    def _primary(self) -> Node:
        kind, text = self._take()
        if kind in ("column", "number", "hex"):
            return Node(kind, text)
        if kind == "prefix":
            return Node("text", self._take()[1], (), text)
        if kind == "word":
            return self._of_word(text)
        if (kind, text) == ("sign", "("):
            node = self.chain()
            self.expect(("sign", ")"))
            return node
        raise NotUnderstood(text)

    def _of_word(self, word: str) -> Node:
        if word == "case":
            return self._case()
        if self._next != ("sign", "("):
            if word == "null":
                return Node("null", "null")
            if word in ("true", "false"):
                return Node("number", "1" if word == "true" else "0")
            raise NotUnderstood(word)
        if word not in _FORMS:
            return _call(word, *self._list())
        self._take()
        node = _FORMS[word](self)
        self.expect(("sign", ")"))
        return node

    def _word(self) -> str:
        kind, text = self._take()
        if kind != "word":
            raise NotUnderstood(text)
        return text

    def _list(self) -> list[Node]:
        """Parse arguments in parentheses."""
        self.expect(("sign", "("))
        if self._takes(("sign", ")")):
            return []
        nodes = [self.chain()]
        while self._takes(("sign", ",")):
            nodes.append(self.chain())
        self.expect(("sign", ")"))
        return nodes

    def _case(self) -> Node:
        compared = [] if self._next == ("word", "when") else [self._unary()]
        nodes: list[Node] = []
        while self._takes(("word", "when")):
            nodes.append(self.chain())
            self.expect(("word", "then"))
            nodes.append(self.chain())
        nodes.append(self.chain() if self._takes(("word", "else")) else Node("null", "null"))
        self.expect(("word", "end"))
        return _call("case of" if compared else "case", *compared, *nodes)

    def _cast(self) -> Node:
        value = self.chain()
        self.expect(("word", "as"))
        return _call("cast", value, note=self._type())

    def _type(self) -> str:
        """Parse the type of a cast, such as ``decimal(10,2)`` or ``char(9) charset utf8mb4``."""
        words = [self._word()]
        while self._next[0] == "word" and self._next[1] not in ("null", "error", "default"):
            words.append(self._take()[1])
        text = " ".join(words)
        if self._takes(("sign", "(")):
            sizes = [self._take()[1]]
            while self._takes(("sign", ",")):
                sizes.append(self._take()[1])
            self.expect(("sign", ")"))
            text += f"({','.join(sizes)})"
            if self._takes(("word", "charset")):
                text += f" charset {self._word()}"
        if _CAST_TYPE.fullmatch(text) is None:
            raise NotUnderstood(text)
        return text

    def _convert(self) -> Node:
        value = self.chain()
        self.expect(("word", "using"))
        return _call("convert", value, note=self._word())

    def _extract(self) -> Node:
        unit = self._word()
        self.expect(("word", "from"))
        return _call("extract", self.chain(), note=unit)

    def _timestampdiff(self) -> Node:
        unit = self._word()
        self.expect(("sign", ","))
        first = self.chain()
        self.expect(("sign", ","))
        return _call("timestampdiff", first, self.chain(), note=unit)

    def _trim(self) -> Node:
        kind, text = self._next
        end = self._word() if kind == "word" and text in ("both", "leading", "trailing") else "both"
        if self._takes(("word", "from")):
            return _call("trim", self.chain(), note=end)
        first = self.chain()
        if self._takes(("word", "from")):
            return _call("trim", self.chain(), first, note=end)
        return _call("trim", first, note=end)

    def _json_value(self) -> Node:
        document = self.chain()
        self.expect(("sign", ","))
        path = self.chain()
        self.expect(("word", "returning"))
        note = self._type()
        replacements = []
        while self._next != ("sign", ")"):
            if self._takes(("word", "default")):
                replacements.append(self._unary())
            elif not self._takes(("word", "null")):
                self.expect(("word", "error"))
            self.expect(("word", "on"))
            if not self._takes(("word", "empty")):
                self.expect(("word", "error"))
        return _call("json_value", document, path, *replacements, note=note)


_FORMS = {
    "cast": _Reader._cast,
    "convert": _Reader._convert,
    "extract": _Reader._extract,
    "timestampdiff": _Reader._timestampdiff,
    "trim": _Reader._trim,
    "json_value": _Reader._json_value,
}
