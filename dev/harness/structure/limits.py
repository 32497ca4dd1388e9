"""Checks the limits of modules: lines of code, imports of modules of this package, names of classes, lost strings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.structure import PACKAGE, Structure, code_lines

CODE_LINES = 600
"""The most lines of code of a module, without blank lines, comments and docstrings."""
OWN_IMPORTS = 20
"""The most modules of this package that a module imports."""
LONGER: Mapping[str, int] = {"tests/models/engine_model.py": 850}


PUBLIC_OBJECTS = ("core/options/copied.py", "core/options/running.py")
"""The modules of the objects that `airflow_provider_cdc` exports to the authors of DAGs."""


def duplicate_classes(package: Path) -> Iterator[str]:
    """Yield a line for each public class name that several modules define.

    A class name means one class. The two kinds of sources are siblings: both may have a class of the same name. The
    objects that a DAG's author writes have the short names of a public interface.
    """
    modules = defaultdict(list)
    for file in sorted({*package.rglob("*.py")} - {package / name for name in PUBLIC_OBJECTS}):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(file)
    for name, files in modules.items():
        kinds = {file.relative_to(package).parts[:2] for file in files}
        siblings = kinds <= {("sources", "mysql"), ("sources", "postgres")} and len(files) == len(kinds)
        if len(files) > 1 and not siblings:
            yield f"class {name} is defined in {' and '.join(map(str, files))}: give each class its own name"


def lost_strings(file: str, source: str) -> Iterator[str]:
    """Yield a line for each string that is a statement of its own, and no docstring: the end of a message that is not
    in parentheses is lost."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.JoinedStr | ast.Constant):
            text = ast.get_source_segment(source, node) or ""
            if text.endswith(('"', "'")) and not text.endswith('"""'):
                yield f"{file}:{node.lineno}: nothing uses this string: put the whole message in parentheses"


def main() -> int:
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    problems: list[str] = []
    for file in sorted({one for one in files if one and Path(one).exists()}):
        source = Path(file).read_text()
        problems += lost_strings(file, source)
        lines, most = code_lines(source), LONGER.get(file, CODE_LINES)
        if lines > most:
            problems.append(f"{file}: {lines} lines of code, at most {most}: split it by its subjects")
    for name, own in Structure(Path()).imports.items():
        if len(own) > OWN_IMPORTS:
            problems.append(f"{name}: imports {len(own)} modules of the package, at most {OWN_IMPORTS}")
    problems += duplicate_classes(Path(PACKAGE))
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
