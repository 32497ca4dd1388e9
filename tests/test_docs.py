"""The documents agree with the code."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.sdk import DAG

import airflow_provider_cdc
from airflow_provider_cdc import SnapshotTaskGroup, __version__, errors
from airflow_provider_cdc.core.options.arguments import declared, places
from airflow_provider_cdc.nightly import read_nightly
from harness.documents import PARTS, written

ROOT = Path(__file__).resolve().parents[1]
DESIGNS = sorted((ROOT / "docs/design").glob("*.md"))
CONDITIONS = 128
"""The number of conditions in all designs. A condition may go only with what it is about."""
DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


RAISED = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.CdcError) and kind.__module__ == errors.__name__
} - {"CdcError", "TerminalError", "TransientError"}


def test_every_error_has_its_paragraph_in_alphabetical_order() -> None:
    assert re.findall(r"^### (\w+)$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE) == sorted(RAISED)


def test_the_runbook_leads_to_the_paragraph_of_every_error() -> None:
    linked = re.findall(r"^\| \[(\w+)\]\(errors\.md#\w+\)", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert linked == sorted(RAISED)


def test_every_error_has_a_code_of_its_own_and_its_paragraph_has_it() -> None:
    """Users search for the code of a message to find the page, so a code never changes its meaning."""
    codes = {name: getattr(errors, name).code for name in RAISED | {"CdcError", "TerminalError", "TransientError"}}
    assert len(set(codes.values())) == len(codes)
    assert all(re.fullmatch(r"CDC-[0-9]{4}", code) for code in codes.values())
    found = dict(re.findall(r"^### (\w+)\n\n`(CDC-[0-9]+)`$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    assert found == {name: codes[name] for name in RAISED}


def _words(page: Path) -> int:
    """Return the number of words of a page, without what is generated."""
    return len(re.sub(r"<!-- generated.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL).split())


def test_a_page_has_one_task_and_can_be_read_at_once() -> None:
    """A page that grows too long is divided. Reference pages are looked up, so they may be long."""
    assert _words(ROOT / "docs/guarantees.md") <= 1500
    too_long, group = list[str](), ""
    for line in (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].splitlines():
        if heading := re.fullmatch(r"  - ([^:]+):", line):
            group = heading[1]
            continue
        page = ROOT / "docs" / line.partition(": ")[2]
        limit = 900 if group.startswith("How to") else 2500
        if group not in ("Reference", "Project") and page.exists() and _words(page) > limit:
            too_long.append(f"{page.name}: {_words(page)} words, at most {limit} in {group}")
    assert too_long == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_the_documents_lead_somewhere(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{target} in {page.name}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor.removeprefix("#") in slugs, f"{target}{anchor} in {page.name}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_generated_is_what_the_code_says(page: Path) -> None:
    assert page.read_text() == written(page.read_text()), "run dev/docs"


def test_every_part_that_can_be_generated_has_its_place() -> None:
    text = "".join(page.read_text() for page in DOCS)
    assert sorted(re.findall("<!-- generated: (.*) -->", text)) == sorted(PARTS)


def test_the_changelog_has_this_version_on_top_in_few_lines() -> None:
    unreleased, release, *_ = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert unreleased.partition("\n")[0] == "Unreleased"
    head, _, text = release.partition("\n")
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", head)
    groups = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert groups == [one for one in ("Added", "Changed", "Deprecated", "Removed", "Fixed") if one in groups]
    assert len([line for line in text.splitlines() if line]) <= 30


def test_the_error_s_tree_is_drawn_whole() -> None:
    assert set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) >= RAISED


def test_readme_leads_to_every_page() -> None:
    index = (ROOT / "README.md").read_text().partition("\n## Documentation\n")[2]
    linked = set(re.findall(r"\(docs/([\w-]+\.md)\)", index))
    own = {"operations.md", "releasing.md"}  # Addresses that moved, and a page for maintainers.
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - own - linked == set()


def _group(*omitted: object, **arguments: Any) -> SnapshotTaskGroup:
    """Return a task group. Snippets write ``...`` for the arguments that they are not about."""
    assert set(omitted) <= {...}
    return SnapshotTaskGroup(**{"source_conn_id": "cdc_mysql", "tables": ["shop.*"], "target": "/lake"} | arguments)


# The notes about upgrades show DAGs before and after a change in one snippet.
SNIPPETS = [
    pytest.param(part, id=f"{page.relative_to(ROOT)}-{number}")
    for page in DOCS
    for number, part in enumerate(
        (
            part
            for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
            for part in re.split(r"^(?=\w+\(  # after)", snippet, flags=re.MULTILINE)
        ),
        1,
    )
    if re.search(rf"\b({'|'.join(airflow_provider_cdc.__all__)}|\w+(Operator|Sensor|Notifier))\(", part)
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_snippets_for_authors_of_dags_can_be_parsed(snippet: str) -> None:
    exports = {name: getattr(airflow_provider_cdc, name) for name in airflow_provider_cdc.__all__}
    with DAG("snippet", schedule=None), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", AirflowProviderDeprecationWarning)
        exec(snippet, {**exports, "SnapshotTaskGroup": _group, "send_to_the_pager": print})
    old = [one for one in found if issubclass(one.category, AirflowProviderDeprecationWarning)]
    assert bool(old) == ("(  # before" in snippet)


MOVED = {one.name: one.place for one in declared() if one.name not in places() and not one.deprecated}
"""The options that are attributes of objects, by the names that they have in forms and in manifests."""
FLAT = re.compile(rf"(?<![\w.{{(])({'|'.join(name for name in MOVED if '_' in name)})\b(?!\.)")
FLAT_IN_CODE = re.compile(rf"`({'|'.join(name for name in MOVED if name != 'changes')})`")


@pytest.mark.slow
def test_messages_name_the_place_where_the_author_of_a_dag_sets_an_option() -> None:
    """An author who reads `on_table_error` in a hint would look for an argument of this name."""
    found = list[str]()
    for module in (ROOT / "airflow_provider_cdc").rglob("*.py"):
        if module.is_relative_to(ROOT / "airflow_provider_cdc/core/options"):
            continue  # The texts of forms: their fields have the names of the options.
        tree = ast.parse(module.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                text = re.sub(r"parameter \w+ \(\w+\.\w+\)", "", node.value)
                if (
                    " " in text.strip()
                    and module.name not in OWN_NAMES
                    and (FLAT.search(text) or FLAT_IN_CODE.search(text))
                ):
                    found.append(f"{module.relative_to(ROOT)}:{node.lineno}: {node.value}")
    assert found == []


OWN_NAMES = {"acts.py", "cleaner.py", "verify.py", "control.py"}
"""The modules whose messages are about arguments of other operators, which have these names."""


def test_the_pages_name_options_by_their_places() -> None:
    """The flat names are in the reference of options, and in the notes about upgrades."""
    found = list[str]()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        if page.name in ("options.md", "upgrading.md"):
            continue
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found += [f"{page.name}: {name}" for name in re.findall(r"`((?:on|keep)_\w+|keep|spark_conf|merge)[`:=]", text)]
    assert found == []


def test_the_example_of_the_file_for_nights_is_one_that_can_be_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/nightly.md").read_text(), re.DOTALL)
    file = tmp_path / "nightly.yaml"
    file.write_text(example)
    assert [source.kind for source in read_nightly(file).sources] == ["mysql", "postgres"]


def _conditions(page: Path) -> dict[str, set[str]]:
    """Return the conditions in the tables of a page (such as ``C1``, ``U4``), each with the tests that its row names.

    A row that says "the same" means the tests of the row above it. The head of a table may name the tests of all rows.
    """
    found, above, head = dict[str, set[str]](), set[str](), set[str]()
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            continue
        named = set(re.findall(r"`(?:tests/[\w/]*/)?(test_\w+)`", line))
        if number < len(lines) and re.fullmatch(r"\|[-| ]+\|", lines[number]):
            head = named
        elif condition := re.match(r"\| ([A-Z]\d+)\b", line):
            above = named | head | (above if re.search(r"\bthe same\b", line) else set())
            found[f"{page.name}:{number} {condition[1]}"] = above
    return found


def _tests() -> set[str]:
    """Return the names of all test modules and test functions that pytest collects."""
    names = set[str]()
    for module in (ROOT / "tests").rglob("test_*.py"):
        names.add(module.stem)
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def _held_by(page: Path) -> dict[str, str]:
    """Return the cell ``held by`` of each condition in the tables of a page."""
    found, column = dict[str, str](), 0
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split(" | ")]
        if number < len(lines) and re.fullmatch(r"\|[-| ]+\|", lines[number]):
            column = next((index for index, cell in enumerate(cells) if cell.startswith("held by")), 0)
        elif condition := re.match(r"\| ([A-Z]\d+)\b", line):
            found[f"{page.name}:{number} {condition[1]}"] = cells[column] if column else ""
    return found


def _names_in_the_package() -> set[str]:
    """Return the names of all modules, classes, functions and attributes of the package."""
    names = set[str]()
    for module in (ROOT / "airflow_provider_cdc").rglob("*.py"):
        names.add(module.stem)
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


@pytest.mark.slow
def test_every_condition_of_the_designs_names_the_place_that_enforces_it() -> None:
    places = {name: cell for page in DESIGNS for name, cell in _held_by(page).items()}
    named = {name: re.findall(r"`([A-Za-z_][\w.]*)`", cell) for name, cell in places.items()}
    without = [name for name, found in named.items() if not found and "a property of the servers" not in places[name]]
    assert without == []
    known = _names_in_the_package()
    unknown = {name: one for name, found in named.items() for one in found if not {*one.split(".")} <= known}
    assert unknown == {}
    modules = [path.as_posix() for path in (ROOT / "airflow_provider_cdc").rglob("*.py")]
    paths = {name: re.findall(r"`([\w/]+\.py)`", cell) for name, cell in places.items()}
    missing = {
        name: one
        for name, found in paths.items()
        for one in found
        if not any(path.endswith(f"/{one}") for path in modules)
    }
    assert missing == {}


@pytest.mark.slow
def test_every_condition_of_the_designs_names_tests_that_exist() -> None:
    conditions = {name: tests for page in DESIGNS for name, tests in _conditions(page).items()}
    assert len(conditions) >= CONDITIONS
    assert sorted(name for name, named in conditions.items() if not named) == []
    assert set().union(*conditions.values()) - _tests() == set()
