"""Kernels as Spark's executors run them: from a zip file, cached between processes, with or without a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import airflow_provider_cdc
from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int64s,
    copy_bytes,
    kernel,
    load_be,
    load_le,
    multiply_add_128,
    wrapping_add,
    wrapping_multiply,
)

USE = """
import sys
import numpy as np
from airflow_provider_cdc.sources.mysql.decode.images import skip_image
data, layout = np.zeros(9, np.uint8), np.array([8], np.int32)
assert skip_image(data, 0, 9, layout * 0, layout, layout * 0, np.zeros(2, np.int64)) == 9
assert ".zip" in sys.modules["airflow_provider_cdc"].__file__
print("hits", sum(skip_image.stats.cache_hits.values()))
"""


@pytest.fixture(scope="module")
def package_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("zip") / "package.zip"
    root = Path(airflow_provider_cdc.__file__).parent
    with zipfile.ZipFile(archive, "w") as target:
        for file in root.rglob("*.py"):
            target.write(file, file.relative_to(root.parent))
    return archive


def run(package_zip: Path, home: Path, **environment: str) -> str:
    """The output of a process with the home folder ``home``. An earlier run may have left code in the real one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG_"))}
    clean: Mapping[str, str] = {**kept, "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**clean, "PYTHONPATH": str(package_zip), **environment},
        cwd=package_zip.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_second_process_compiles_nothing_unless_the_sources_have_changed(package_zip: Path, tmp_path: Path) -> None:
    changed = tmp_path / "package.zip"
    with zipfile.ZipFile(package_zip) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            # A module that the kernel's own module imports.
            more = b"# changed" if name.endswith("core/kernels.py") else b""
            target.writestr(name, source.read(name) + more)
    place = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(package_zip, tmp_path, **place) == "hits 0"
    shutil.copy(changed, package_zip)
    assert run(package_zip, tmp_path, **place) == "hits 0"
    assert run(package_zip, tmp_path, **place) == "hits 1"


@pytest.mark.slow
def test_without_a_setting_the_users_cache_is_used(package_zip: Path, tmp_path: Path) -> None:
    assert run(package_zip, tmp_path) == "hits 0"
    assert run(package_zip, tmp_path) == "hits 1"
    assert list(tmp_path.glob(".cache/numba/*"))


@pytest.mark.long
def test_without_any_place_to_cache_every_process_compiles(package_zip: Path) -> None:
    for _ in range(2):
        assert run(package_zip, Path("/proc/nowhere")) == "hits 0"


@kernel
def _both(data: Bytes, position: int, width: int) -> tuple[int, int]:
    return load_le(data, position, width), load_be(data, position, width)


def test_integers_of_any_width() -> None:
    data = np.frombuffer(bytes(range(0xF8, 0x100)) + b"\x01", np.uint8)
    for width in range(9):
        for start in range(9 - width + 1):
            piece = data[start : start + width].tobytes()
            found = tuple(value % 2**64 for value in _both(data, start, width))
            assert found == (int.from_bytes(piece, "little"), int.from_bytes(piece, "big"))


@kernel
def _moved(data: Bytes, at: int, position: int, count: int) -> None:
    copy_bytes(data, at, data, position, count)


def test_a_copy_may_overlap() -> None:
    data = np.arange(100, dtype=np.uint8)
    _moved(data, 3, 0, 90)
    assert data.tolist() == [0, 1, 2, *range(90), *range(93, 100)]


@kernel
def _horner(parts: Int64s, factor: int, out: Int64s) -> None:
    low = high = 0
    for part in parts:
        low, high = multiply_add_128(low, high, factor, part)
    out[0], out[1] = low, high


def test_128_bits() -> None:
    digits, out = "12345678901234567890123456789012345678", np.zeros(2, np.int64)
    parts = np.array([int(digits[start : start + 2]) for start in range(0, 38, 2)], np.int64)
    _horner(parts, 100, out)
    assert int(out[0]) % 2**64 + (int(out[1]) << 64) == int(digits)


@kernel
def _wrapped(one: int, other: int) -> tuple[int, int]:
    return wrapping_add(one, other), wrapping_multiply(one, other)


def test_what_is_to_wrap_around_does() -> None:
    for one, other in product((-(2**63), -(10**18) - 9, -1, 0, 3, 2**62 + 7, 2**63 - 1), repeat=2):
        found = tuple(value % 2**64 for value in _wrapped(one, other))
        assert found == ((one + other) % 2**64, one * other % 2**64)
