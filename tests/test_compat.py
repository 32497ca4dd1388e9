"""Private interfaces of other libraries may break without notice, so only ``compat`` and a few modules use them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider_cdc

PACKAGE = Path(airflow_provider_cdc.__file__).parent
EXCEPT = ("compat.py", "sources/mysql/server/driver.py", "sources/postgres/server/session.py", "sinks/iceberg/")
"""The modules and the folder that use private names, as the docstring of ``compat`` says. The drivers are of a piece
with PyMySQL and ADBC. The Iceberg sink uses one series of PyIceberg: ``sinks/iceberg/test_pyiceberg_members.py`` lists
the members."""
DOCUMENTED = {"os._exit", "sys._getframe"}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier() and len(name) > 1


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, attributes, fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _used(tree: ast.AST, own_names: Counter[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            # An inherited name is our own if a second definition exists besides the override that calls it.
            inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
            if own_names[node.attr] < 1 + inherited and ast.unparse(node) not in DOCUMENTED:
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] != PACKAGE.name:
            if any(map(_is_private, [*node.module.split("."), *(one.name for one in node.names)])):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)) and name.value not in own_names:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.slow
def test_only_compat_and_the_listed_modules_use_what_other_libraries_keep_private() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if not path.relative_to(PACKAGE).as_posix().startswith(EXCEPT)]
    trees = {path: ast.parse(path.read_text()) for path in modules}
    own_names = Counter(name for tree in trees.values() for name in _defined(tree))
    used = {str(path.relative_to(PACKAGE)): [*_used(tree, own_names)] for path, tree in trees.items()}
    assert {path: uses for path, uses in used.items() if uses} == {}
