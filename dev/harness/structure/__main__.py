"""Prints the structure of the package in numbers: `dev/numbers`."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from harness.structure import PACKAGE, Structure

WORDS = (
    ("read_in", r"\bread_in\b"),
    ("at_upper", r"\bat_upper\b"),
    ("keyless", r"\bkeyless\b"),
    (".eras", r"\.eras\b"),
    ("earlier_reads", r"earlier_reads|EarlierReads"),
    ("identity: Mapping", r"identity: (?:Mapping|dict)\[str, str\]"),
    ("position texts parsed", r"parse_position\(|(?:GtidSet|Lsn)\.expect\(|LogPlace\.parse\(|parse_log_end\("),
)
PARTS = ("core/run", "core/copies", "jobs", "sinks", "sources/api", "sources/log", "sources/mysql", "sources/postgres")
_SHOWN = 12


def main() -> None:
    structure = Structure(Path())
    modules, imports = structure.modules.values(), structure.imports.values()
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    protocols = sum(any("Protocol" in ast.unparse(base) for base in one.bases) for one in classes)
    dataclasses = sum(any("dataclass" in ast.unparse(one) for one in each.decorator_list) for each in classes)
    checks = sum(
        isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and "source" in ast.unparse(node.args[0])
        for node in nodes
    )
    most, many = max(map(len, imports)), sum(len(own) > 20 for own in imports)
    _print("code lines", sum(module.code_lines for module in modules))
    _print("modules", len(modules))
    _print("own imports", sum(map(len, imports)), f"most {most}, more than 20: {many}")
    _print("folder pairs both ways", len(structure.mutual_pairs))
    _print("Protocol classes", protocols, f"dataclasses {dataclasses}")
    _print("isinstance(…source…, …)", checks)
    for title, pattern in WORDS:
        found = [number for module in modules if (number := len(re.findall(pattern, module.source)))]
        _print(title, sum(found), f"in {len(found)} files")
    for part in PARTS:
        folders = tuple(part.split("/"))
        own = [module.code_lines for module in modules if module.folders[: len(folders)] == folders]
        _print(f"  {part}", sum(own), f"code lines, {len(own)} modules")
    if "--pairs" in sys.argv:
        _print_pairs(structure)


def _print(title: str, number: int, more: str = "") -> None:
    print(f"{title:25} {number:6,}   {more}".rstrip())


def _print_pairs(structure: Structure) -> None:
    for one, other in structure.mutual_pairs:
        there, back = structure.arrows[one, other], structure.arrows[other, one]
        print(f"\n{one} -> {other}: {len(there)}; back: {len(back)}")
        for importer, imported in sorted(there if len(there) <= len(back) else back)[:_SHOWN]:
            print("   ", importer.removeprefix(f"{PACKAGE}."), "->", imported.removeprefix(f"{PACKAGE}."))


if __name__ == "__main__":
    main()
