"""The structure of the package: the sizes of its modules, and what they import from each other."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "airflow_provider_cdc"
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines that are not blank, and belong neither to a comment nor to the docstring of a module,
    class or function."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


@dataclass(frozen=True)
class Module:
    """A module of the package. ``folders`` are the folders below the package in which it lies."""

    path: Path
    folders: tuple[str, ...]
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def code_lines(self) -> int:
        return code_lines(self.source)


class Structure:
    """The modules of a package, by their full names.

    :param root: the root of the repository.
    """

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted((root / PACKAGE).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = Module(path, path.relative_to(root / PACKAGE).parts[:-1], path.read_text())
        self.imports = {name: self._imported(module) for name, module in self.modules.items()}

    def _imported(self, module: Module) -> set[str]:
        found = set[str]()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in self.modules else node.module)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
        return found & self.modules.keys()

    @property
    def mutual_pairs(self) -> list[tuple[str, str]]:
        """The pairs of neighbouring folders that import each other. A module beside a folder counts as a folder."""
        return sorted((one, other) for one, other in self.arrows if one < other and (other, one) in self.arrows)

    @cached_property
    def arrows(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """The imports between neighbouring folders, by the two folders."""
        arrows = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
        for name, targets in self.imports.items():
            for target in targets:
                if (pair := self._sides(name, target)) is not None:
                    arrows[pair].append((name, target))
        return dict(arrows)

    def _sides(self, one: str, other: str) -> tuple[str, str] | None:
        """Return the two neighbouring folders that an import joins. None: one of the folders contains the other."""
        here, there = self.modules[one].folders, self.modules[other].folders
        depth = 0
        while depth < min(len(here), len(there)) and here[depth] == there[depth]:
            depth += 1
        if depth in (len(here), len(there)):
            return None
        return "/".join(here[: depth + 1]), "/".join(there[: depth + 1])
