"""Builds the documentation site from the repository's Markdown with MkDocs.

MkDocs wants all pages in one folder, and links between them relative to it. The repository has README.md and
ARCHITECTURE.md at its root, where hosts of repositories show them. So the pages are copied into a staging folder and
their links rewritten: those to other pages to their place there, those to source files to the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

AT_THE_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""The pages outside of docs/, and their names on the site."""

_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


def repository_url() -> str:
    """The address of the repository, as the package's metadata has it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["urls"]["Source"])


def site_name(path: str) -> str | None:
    """The name on the site of a page that is given relative to the repository's root; None: it is no page."""
    if path in AT_THE_ROOT:
        return AT_THE_ROOT[path]
    folder, _, name = path.partition("/")
    return name if folder == "docs" else None


def with_site_links(text: str, page: str) -> str:
    """The text of ``page`` (relative to the root) with links that work on the site."""
    here = posixpath.dirname(site_name(page) or "")

    def rewritten(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        name = site_name(path)
        if name is None:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{before}{repository_url()}/{kind}/main/{path}{after}"
        return f"{before}{posixpath.relpath(name, here or '.')}{after}"

    return _LINK.sub(rewritten, text)


def stage(folder: Path) -> None:
    """Copy all pages and pictures into ``folder``."""
    sources = [*AT_THE_ROOT, *(str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*") if file.is_file())]
    for source in sources:
        target = folder / (site_name(source) or "")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            target.write_text(with_site_links((ROOT / source).read_text(), source))
        else:
            shutil.copyfile(ROOT / source, target)


def build(folder: Path) -> Path:
    """Build the site below ``folder``, and return its folder.

    :raises SystemExit: MkDocs failed, or a link leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder / "pages")
    settings = (ROOT / "mkdocs.yml").read_text()
    (folder / "mkdocs.yml").write_text(
        f"{settings}\ndocs_dir: {folder / 'pages'}\nsite_dir: {folder / 'site'}\nrepo_url: {repository_url()}\n"
    )
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(folder / "mkdocs.yml"),
    ]
    # The theme prints a notice about its successor otherwise.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, check=False, env=environment).returncode:
        raise SystemExit("docs: the site could not be built; MkDocs named the page and the link above")
    return folder / "site"
