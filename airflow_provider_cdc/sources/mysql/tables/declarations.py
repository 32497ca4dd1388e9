"""Parse declared types, such as ``decimal(10,2) unsigned`` and ``enum('a','b')``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DECLARED = re.compile(r"(\w+)(?:\((.*)\))?((?: unsigned| zerofill)*)", re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_LABELS = re.compile(rf"{_LABEL.pattern}(,{_LABEL.pattern})*", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}


@dataclass(frozen=True)
class Declared:
    """A parsed type: ``decimal(10,2) unsigned`` is ``decimal``, ``10,2``, True, False."""

    name: str
    arguments: str
    unsigned: bool
    zerofill: bool

    def number(self, index: int, default: int) -> int:
        """Return the argument at ``index`` as a number; ``default`` if there are fewer arguments."""
        parts = self.arguments.split(",") if self.arguments else []
        return int(parts[index]) if index < len(parts) else default


def parse(text: str) -> Declared | None:
    """Parse a type as information_schema shows it. None: the text has another form."""
    match = _DECLARED.fullmatch(text)
    if match is None:
        return None
    return Declared(match[1].lower(), match[2] or "", "unsigned" in match[3], "zerofill" in match[3])


def are_labels(arguments: str) -> bool:
    """Whether all members are quoted. If the bytes of a member are not text, the server shows the bytes: ``x'ff'``."""
    return _LABELS.fullmatch(arguments) is not None


def labels(arguments: str) -> tuple[str, ...]:
    """Return the members of ``'a','b''c'``, without the quoting of information_schema."""
    return tuple(
        _ESCAPED.sub(lambda escaped: "'" if escaped[1] is None else _ESCAPES.get(escaped[1], escaped[1]), label[1])
        for label in _LABEL.finditer(arguments)
    )
