"""Writes the generated parts of all pages and of a docstring; with ``--site FOLDER``, also builds the site there."""

import sys
from pathlib import Path

from harness.documents import PAGES, docstring, written
from harness.documents.site import build

for file, rewrite in (*((page, written) for page in PAGES), (docstring.MODULE, docstring.with_declared_options)):
    before = file.read_text()
    after = rewrite(before)
    if after != before:
        file.write_text(after)
        print(f"docs: updated {file.name}")
if sys.argv[1:2] == ["--site"]:
    print(f"docs: the site is in {build(Path(sys.argv[2]))}")
