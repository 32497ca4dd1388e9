"""Write the generated parts of all pages."""

from harness.documents import PAGES, written

for page in PAGES:
    before = page.read_text()
    after = written(before)
    if after != before:
        page.write_text(after)
        print(f"docs: {page.name} is another now")
