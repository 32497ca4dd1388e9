"""Finds labels of an ENUM that the server may take for each other.

Without strict mode, the server accepts labels that are equal in the collation of the column, such as 'a' and 'A'. A
number can still select each of them, but for a text, the server always takes the first one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain, combinations, product

_PLAIN = re.compile(r"[ -~\u0370-\u04ff\u4e00-\u9fff]")
"""Characters that no collation takes for another character, except for the other case of the same letter and except
for `_ALIKE`. Each other character may be equal to any text, also to none."""
_ALIKE = str.maketrans("jvw", "iuu")
"""Letters that some collations take for each other, such as utf8mb4_roman_ci."""

_MOST_PAIRS = 1_000_000


def may_be_alike(labels: Sequence[str]) -> bool:
    """Return whether any two of the labels may be equal in some collation."""
    parts = [_plain_parts(label) for label in labels]
    known = [one for one in parts if len(one) == 1]
    others = [one for one in parts if len(one) > 1]
    if len({one[0] for one in known}) < len(known) or len(others) * len(parts) > _MOST_PAIRS:
        return True
    return any(_fit(one, other) for one, other in chain(product(others, known), combinations(others, 2)))


def _plain_parts(label: str) -> list[str]:
    """Split a label at the characters that may be equal to any text."""
    folded = label.casefold().translate(_ALIKE).rstrip(" ")
    marked = "".join(one if _PLAIN.match(one) and _is_whole(one) else "\0" for one in folded)
    return marked.split("\0")


def _is_whole(character: str) -> bool:
    return unicodedata.normalize("NFKD", character) == character


def _fit(one: list[str], other: list[str]) -> bool:
    ends = [(one[0], other[0], len(one), len(other)), (one[-1][::-1], other[-1][::-1], len(one), len(other))]
    # A text of one part is known as a whole, so it is not the beginning of a longer one.
    return all(
        (first.startswith(second) and count_of_second > 1) or (second.startswith(first) and count_of_first > 1)
        for first, second, count_of_first, count_of_second in ends
    )
