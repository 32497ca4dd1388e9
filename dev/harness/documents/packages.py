"""Generates the map of the package: each folder and top-level module, with the first sentence of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "airflow_provider_cdc"


def package_map() -> Iterator[Sequence[str]]:
    yield "where", "modules", "what it is about"
    for module in sorted(PACKAGE.glob("*.py")):
        if module.name != "__init__.py":
            yield f"`{module.name}`", "", _summary(module)
    for module in sorted(PACKAGE.rglob("__init__.py")):
        folder = module.parent
        if folder != PACKAGE:
            count = sum(1 for other in folder.glob("*.py") if other != module)
            yield f"`{folder.relative_to(PACKAGE)}/`", str(count or ""), _summary(module)


def _summary(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".:").replace("``", "`")
