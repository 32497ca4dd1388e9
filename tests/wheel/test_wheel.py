"""The built wheel, in an environment with only its dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from airflow_provider_cdc import __version__
from harness.package_readme import with_absolute_links

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that sees the wheel, installed, and the dependencies, but not the checkout."""
    home = tmp_path_factory.mktemp("venv")
    _run(sys.executable, "-m", "venv", home, cwd=home)
    python = home / "bin/python"
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    # `addsitedir` would also run the .pth file of the editable install, which names the checkout.
    (site / "dependencies.pth").write_text(f"{_site_packages()}\n")
    return python


def test_wheel_carries_apps_and_dags_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("dags", "spark_apps"):
        expected = {f"airflow_provider_cdc/{p.relative_to(ROOT)}" for p in (ROOT / folder).glob("*.py")}
        assert expected, f"{folder}/ is empty"
        assert expected <= names
    # What is not Python, too: templates, settings of Spark's log.
    data = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "airflow_provider_cdc").rglob("*.*")
        if p.suffix not in (".py", ".pyc")
    }
    assert {Path(name).suffix for name in data} >= {".jinja", ".properties"}
    assert data <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"airflow_provider_cdc", next(t for t in tops if t.endswith(".dist-info"))}
    assert not [name for name in names if "__pycache__" in name]


def test_the_long_description_has_no_relative_link(wheel: Path) -> None:
    """A package index shows README without the repository. Each link names a page of the tag of this release."""
    metadata, description = _metadata(wheel)
    assert metadata["Version"] == __version__
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    targets = re.findall(r"\]\(([^)]*)\)", description)
    pages = [re.fullmatch(rf"{urls['Source']}/blob/v{__version__}/([^#]*)(#.*)?", target) for target in targets]
    assert len(pages) > 20
    for target, page in zip(targets, pages, strict=True):
        assert page, target
        assert (ROOT / page[1]).is_file(), target
    assert re.sub(rf"{urls['Source']}/blob/v{__version__}/", "", description) == (ROOT / "README.md").read_text()


def test_links_to_pictures_and_links_that_are_absolute_lead_where_they_should() -> None:
    text = "![a](docs/a.svg) [b](docs/b.md#c) [d](https://example.com/d) [e](#e) [f](mailto:f@example.com)"
    assert with_absolute_links(text, "https://host/us", "1.2.3") == (
        "![a](https://host/us/raw/v1.2.3/docs/a.svg) [b](https://host/us/blob/v1.2.3/docs/b.md#c) "
        "[d](https://example.com/d) [e](#e) [f](mailto:f@example.com)"
    )


@pytest.mark.slow
def test_airflow_finds_the_provider_in_the_wheel(python: Path) -> None:
    script = (
        "import importlib.metadata as m\n"
        "(found,) = [e for e in m.distribution('airflow-provider-cdc').entry_points]\n"
        "import airflow_provider_cdc\n"
        "print(airflow_provider_cdc.__file__)\n"
        "print(found.load()()['package-name'])\n"
    )
    file, name = _run(python, "-I", "-c", script, cwd=python.parent).split()
    assert ROOT not in Path(file).parents
    assert name == "airflow-provider-cdc"


@pytest.mark.slow
def test_importing_the_package_imports_only_the_standard_library(python: Path) -> None:
    script = (
        "import sys; before = set(sys.modules); import airflow_provider_cdc; "
        "print({name for name in set(sys.modules) - before if name.partition('.')[0] not in sys.stdlib_module_names})"
    )
    assert _run(python, "-I", "-c", script, cwd=python.parent).strip() == "{'airflow_provider_cdc'}"


def _metadata(wheel: Path) -> tuple[Message, str]:
    """The fields of the wheel's metadata, and the long description below them."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        content = archive.read(name)
    return message_from_bytes(content), content.decode().partition("\n\n")[2]


def _site_packages() -> Path:
    return next(p for p in map(Path, sys.path) if p.name == "site-packages")


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
