"""Writes the generated parts of all pages; with ``--site FOLDER``, also builds the site there."""

import sys
from pathlib import Path

from harness.documents import PAGES, written
from harness.documents.site import build

for page in PAGES:
    before = page.read_text()
    after = written(before)
    if after != before:
        page.write_text(after)
        print(f"docs: updated {page.name}")
if sys.argv[1:2] == ["--site"]:
    print(f"docs: the site is in {build(Path(sys.argv[2]))}")
