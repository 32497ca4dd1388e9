"""A record is read as it was written, or one clear error says that it is none."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core import records
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import ManifestError


@dataclass(frozen=True)
class Inner:
    name: str
    size: int


@dataclass(frozen=True)
class Outer:
    id: str
    files: tuple[Inner, ...]
    counts: dict[str, list[int]]
    seconds: float
    upper: str | None = None
    more: Any = None
    done: bool = False


RECORD = Outer("a", (Inner("x", 1), Inner("y", 2)), {"3": [4, 5]}, 1.5, None, {"any": [None]}, True)


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


def test_a_record_is_read_as_it_was_written(run: Storage) -> None:
    run.write_json("a.json", asdict(RECORD))
    assert records.read(Outer, run, "a.json") == RECORD


def test_what_has_a_default_may_be_left_out() -> None:
    assert records.decode(Outer, {"id": "a", "files": [], "counts": {}, "seconds": 2}, "") == Outer("a", (), {}, 2.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": 1}, "id is no str: 1"),
        ({"id": None}, "id is no str: None"),
        ({"files": {}}, "files is no list"),
        ({"files": [{"name": "x"}]}, r"files\[0\] lacks 'size'"),
        ({"files": [{"name": "x", "size": True}]}, r"files\[0\]\.size is no int: True"),
        ({"files": [[]]}, r"files\[0\] is no object"),
        ({"counts": []}, "counts is no object"),
        ({"counts": {"3": 4}}, r"counts\.3 is no list"),
        ({"seconds": "1"}, "seconds is no number"),
        ({"upper": 1}, "upper is no str"),
        ({"done": 1}, "done is no bool"),
        ({"new": 1}, "'new', which it should not"),
    ],
)
def test_data_of_another_shape_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        records.decode(Outer, json.loads(json.dumps(asdict(RECORD))) | change, "a.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", "null", '"x"', "\xff"])
def test_a_file_that_is_no_record_is_named(text: str, run: Storage) -> None:
    Path(run.path("a.json")).write_bytes(text.encode("latin-1"))
    with pytest.raises(ManifestError, match=r"a\.json"):
        records.read(Outer, run, "a.json")


def test_a_record_that_is_gone_is_named(run: Storage) -> None:
    with pytest.raises(ManifestError, match=r"a\.json: the record is gone"):
        records.read(Outer, run, "a.json")


def test_a_name_with_a_digest_names_what_is_in_it(run: Storage) -> None:
    name = records.write_named(run, "work/files", {"b": 1, "a": [2]})
    assert records.write_named(run, "work/files", {"a": [2], "b": 1}) == name
    assert records.read_named(run, name) == {"b": 1, "a": [2]}
    run.write_json(name, {"b": 1, "a": [3]})
    with pytest.raises(ManifestError, match="not the one that was written"):
        records.read_named(run, name)
