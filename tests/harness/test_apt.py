"""Packages are unpacked completely, and a failure has the hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import apt
from harness.errors import HarnessError


def test_absolute_links_lead_into_the_unpacked_tree(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/settings").write_text("inside")
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/settings").symlink_to("/etc/settings")
    apt._make_links_relative(tmp_path)
    assert (tmp_path / "usr/lib/settings").read_text() == "inside"
    assert (tmp_path / "usr/lib/settings").readlink() == Path("../../etc/settings")


def test_without_a_mirror_the_error_names_the_hint(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"Instead: buy one"):
        apt.unpack([["anything"]], tmp_path, suites=[], with_dependencies=False, hint="buy one")


def test_unreachable_mirror_is_reported(tmp_path: Path) -> None:
    nowhere = apt.Suite((tmp_path / "mirror").as_uri(), "sid", "main")
    with pytest.raises(HarnessError, match=r"(?s)apt-get update failed.*Instead: buy one"):
        apt.unpack([["anything"]], tmp_path / "out", suites=[nowhere], with_dependencies=True, hint="buy one")
