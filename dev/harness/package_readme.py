"""Build hook: makes the package's long description of README.md, with links that work on a package index.

README.md links to pages and pictures relative to itself, as a host of repositories wants it. A package index shows the
text without the repository, so the links lead to the repository there, at the tag of the version that is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)(?P<before>\[[^\]]*\]\()(?!\w+:|#)(?P<target>[^)\s]+)(?P<after>\))")


class Readme(MetadataHookInterface):
    """Sets ``readme``, which ``pyproject.toml`` declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description, from README.md, the version and ``[project.urls]``."""
        root = Path(self.root)
        module = (root / "airflow_provider_cdc/__init__.py").read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.*)"$', module, re.MULTILINE)
        readme = (root / "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(readme, metadata["urls"]["Source"], version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return Markdown whose relative links lead to the repository, at the tag of ``version``."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}{link['before']}{repository}/{kind}/v{version}/{link['target']}{link['after']}"

    return _LINK.sub(absolute, text)
