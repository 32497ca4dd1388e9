"""Builds the documentation site from the repository's Markdown with MkDocs.

MkDocs requires all pages in one folder, with links relative to it. The repository has README.md and ARCHITECTURE.md at
its root, where repository hosts show them. So the pages are copied to a staging folder, and their links are rewritten:
links to pages point to the staged pages, and links to source files point to the repository.
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
    """Return the address of the repository from the package's metadata."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["urls"]["Source"])


def site_name(path: str) -> str | None:
    """Return the name on the site of a page, given relative to the repository's root; None: it is not a page."""
    if path in AT_THE_ROOT:
        return AT_THE_ROOT[path]
    folder, _, name = path.partition("/")
    return name if folder == "docs" else None


def with_site_links(text: str, page: str) -> str:
    """Return the text of ``page`` (relative to the root) with links that work on the site."""
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
    """Copy all pages and pictures to ``folder``."""
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

    :raises SystemExit: MkDocs failed, or a link is broken.
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
    # Suppress the theme's notice about its successor.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, check=False, env=environment).returncode:
        raise SystemExit("docs: could not build the site; see MkDocs' messages above for the page and the link")
    return folder / "site"
