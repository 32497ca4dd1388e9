"""Declared types, taken apart: ``decimal(10,2) unsigned``, ``enum('a','b')``."""

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
    """``decimal(10,2) unsigned`` is ``decimal``, ``10,2``, True, False."""

    name: str
    arguments: str
    unsigned: bool
    zerofill: bool

    def number(self, index: int, default: int) -> int:
        """The argument at ``index``, a number; ``default`` if there are fewer."""
        parts = self.arguments.split(",") if self.arguments else []
        return int(parts[index]) if index < len(parts) else default


def parse(text: str) -> Declared | None:
    """``text`` as information_schema gives it; None if it has another form."""
    match = _DECLARED.fullmatch(text)
    if match is None:
        return None
    return Declared(match[1].lower(), match[2] or "", "unsigned" in match[3], "zerofill" in match[3])


def are_labels(arguments: str) -> bool:
    """Whether all members are quoted; of one whose stored bytes are no text the server shows these bytes: ``x'ff'``."""
    return _LABELS.fullmatch(arguments) is not None


def labels(arguments: str) -> tuple[str, ...]:
    """The members of ``'a','b''c'``, unquoted the way information_schema quotes them."""
    return tuple(
        _ESCAPED.sub(lambda escaped: "'" if escaped[1] is None else _ESCAPES.get(escaped[1], escaped[1]), label[1])
        for label in _LABEL.finditer(arguments)
    )
