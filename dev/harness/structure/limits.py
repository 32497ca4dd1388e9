"""Checks the limits of modules: lines of code, imports of modules of this package, names of classes."""

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


def main() -> int:
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    problems = []
    for file in sorted({one for one in files if one and Path(one).exists()}):
        lines, most = code_lines(Path(file).read_text()), LONGER.get(file, CODE_LINES)
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
