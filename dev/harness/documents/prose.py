"""Finds banned phrases in the documents, and in the docstrings, comments and texts of the package.

The list holds phrases that readers had to read twice, each with what to write instead. It is short on purpose: a phrase
is banned once it is gone, so that it does not come back.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

BANNED = {
    r"\bnobody\b": "name what does not happen: no task reads it, no session waits",
    r"\bsomebody\b": "name who: another session, the operator, another run",
    r"\bwhoever\b": "name who: the user who triggers the DAG",
    r"\b(is|are|was|were) told\b": "say what happens: logs, raises, returns, reports",
    r"\bsays so\b": "say what it writes: logs a warning, names the table",
    r"\bwithout a word\b": "silently",
    r"\bwhat the source keeps\b": "the replication slot and the publication",
    r"\b(of|to) (ours|theirs)\b": "name the owner: this package's, the other run's",
    r"\blikewise\b": "also, in the same way",
    r"\bin vain\b": "without success",
    r"\bnow and then\b": "periodically",
    r"\bbe it\b": "whether",
    r"\bknows nothing of\b": "does not have, does not read",
    r"\bthe like\b": "name the others, or write 'such as'",
    r"\bis to be had\b": "exists, is available",
    r"\bgo(es)? by the board\b": "is lost",
    r"\bmakes nothing of\b": "ignores",
    r"\bhad better\b": "should",
    r"\bfor (it|he|they|that) (is|are|was|has|have)\b": "because",
}

_PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in BANNED), re.IGNORECASE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def markdown_prose(text: str) -> str:
    """The text with its code blanked out, line by line."""
    blank = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    return _CODE.sub("``", blank)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """The comments and string literals of a module, each with the number of its first line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def findings_in(file: Path) -> Iterator[str]:
    """The banned phrases of a file, as ``path:line: phrase: hint``."""
    text = file.read_text()
    pieces = python_prose(text) if file.suffix == ".py" else [(1, markdown_prose(text))]
    for first_line, piece in pieces:
        for number, line in enumerate(piece.splitlines()):
            for match in _PATTERN.finditer(line):
                hint = next(hint for phrase, hint in BANNED.items() if re.fullmatch(phrase, match[0], re.IGNORECASE))
                yield f"{file.relative_to(ROOT)}:{first_line + number}: {match[0]!r}: {hint}"


def main(paths: list[str]) -> int:
    """Print the findings below ``paths``, relative to the root; return how many there are."""
    files = [file for path in paths for file in _files(ROOT / path)]
    findings = [finding for file in sorted(files) for finding in findings_in(file)]
    print(*findings, sep="\n" if findings else "", end="\n" if findings else "")
    return len(findings)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.suffix in (".md", ".py")]


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:] or ["README.md", "docs", "airflow_provider_cdc"]) else 0)
