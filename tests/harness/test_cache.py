"""Files in the cache are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cache import building, cache_directory


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    destination = tmp_path / "thing"

    def fail_half_way() -> None:
        with building(destination) as work:
            (work / "part").touch()
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_finished_build_appears_under_its_name(tmp_path: Path) -> None:
    with building(tmp_path / "a" / "thing") as work:
        (work / "part").touch()
    assert [p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()] == [Path("a/thing/part")]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CDC_CACHE": "{0}/own", "XDG_CACHE_HOME": "{0}/xdg"}, "own"),
        ({"CDC_CACHE": "", "XDG_CACHE_HOME": "{0}/xdg"}, "xdg/airflow-provider-cdc"),
        ({"CDC_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "{0}"}, ".cache/airflow-provider-cdc"),
    ],
)
def test_cache_follows_the_environment(
    variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert cache_directory() == tmp_path / expected
