"""The parts of the documents that are generated from the code.

A page marks such a part with two comments, each on its own line::

    <!-- generated: arguments -->
    <!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from harness.documents.checks import CHECK_TABLES
from harness.documents.errors import error_table
from harness.documents.merging import merge_table
from harness.documents.metrics import metric_table
from harness.documents.mysql_servers import service_table, version_table
from harness.documents.options import argument_table, clean_table, object_tables
from harness.documents.packages import package_map
from harness.documents.settings import setting_table
from harness.documents.types import iceberg_types, mysql_types, postgres_types

_ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])

PARTS: Mapping[str, Callable[[], Iterable[Sequence[str]]]] = {
    "packages": package_map,
    "arguments": argument_table,
    **object_tables(),
    "clean": clean_table,
    "settings": setting_table,
    "errors": error_table,
    "metrics": metric_table,
    "merging": merge_table,
    "iceberg types": iceberg_types,
    "mysql types": mysql_types,
    "mysql versions": version_table,
    "mysql services": service_table,
    "postgres types": postgres_types,
    **CHECK_TABLES,
}
"""The rows of each generated table, by the name in the comment. The first row is the header."""

_PART = re.compile(r"(?<=<!-- generated: )(.*?)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """Return the text of a page with its generated parts updated from the code."""
    return _PART.sub(lambda found: f"{found[1]}{found[2]}\n{_table(PARTS[found[1]]())}\n", page)


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
