"""Write the generated parts of all pages."""

from harness.documents import DOCS, written

for page in sorted(DOCS.glob("*.md")):
    before = page.read_text()
    after = written(before)
    if after != before:
        page.write_text(after)
        print(f"docs: {page.name} is another now")
