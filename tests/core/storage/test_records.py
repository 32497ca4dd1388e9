"""A record is read as it was written, or one clear error reports that it is damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
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
    table: TableName | None = None
    by_number: dict[int, Inner] = field(default_factory=dict)


RECORD = Outer(
    "a",
    (Inner("x", 1), Inner("y", 2)),
    {"3": [4, 5]},
    1.5,
    None,
    {"any": [None]},
    True,
    TableName("s", "t.u"),
    {3: Inner("z", 10**30)},
)


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


def test_a_record_is_read_as_it_was_written(run: Storage) -> None:
    records.write(run, "a.json", RECORD)
    assert records.read(Outer, run, "a.json") == RECORD


def test_what_has_a_default_may_be_left_out() -> None:
    assert records.decode(Outer, {"id": "a", "files": [], "counts": {}, "seconds": 2}, "") == Outer("a", (), {}, 2.0)


def test_equal_records_have_equal_digests_whatever_was_left_out() -> None:
    made = Outer("a", (Inner("x", 1),), {}, 2.0)
    left_out = {"id": "a", "files": [{"name": "x", "size": 1}], "counts": {}, "seconds": 2.0}
    decoded = [records.decode(Outer, data, "") for data in (left_out, records.encode(made))]
    assert decoded == [made, made]
    assert {records.digest_of(one) for one in decoded} == {records.digest_of(made)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": 1}, "id: expected str, got int"),
        ({"id": None}, "id: expected str, got null"),
        ({"files": {}}, "files: expected array, got object"),
        ({"files": [{"name": "x"}]}, r"files\[0\]: object missing required field size"),
        ({"files": [{"name": "x", "size": True}]}, r"files\[0\]\.size: expected int, got bool"),
        ({"files": [[]]}, r"files\[0\]: expected object, got array"),
        ({"counts": []}, "counts: expected object, got array"),
        ({"counts": {"3": 4}}, r"counts\[\.\.\.\]: expected array, got int"),
        ({"seconds": "1"}, "seconds: expected float, got str"),
        ({"upper": 1}, r"upper: expected str \| null, got int"),
        ({"done": 1}, "done: expected bool, got int"),
        ({"table": "orders"}, "table: 'orders' does not name a table"),
        ({"table": 7}, "table: expected the text of a TableName, got 7"),
        ({"new": 1}, "new is not known"),
        ({"files": [{"name": "x", "size": 1, "new": 1}]}, r"files\[0\]\.new is not known"),
    ],
)
def test_data_of_another_shape_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        records.decode(Outer, json.loads(json.dumps(records.encode(RECORD))) | change, "a.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", "null", '"x"', "\xff"])
def test_a_file_that_is_no_record_is_named(text: str, run: Storage) -> None:
    Path(run.path("a.json")).write_bytes(text.encode("latin-1"))
    with pytest.raises(ManifestError, match=r"a\.json"):
        records.read(Outer, run, "a.json")


def test_a_record_of_another_version_names_the_version_to_use() -> None:
    with pytest.raises(ManifestError, match=r"another version wrote the record: new is not known") as failed:
        records.decode(Outer, records.encode(RECORD) | {"new": 1}, "a.json")
    assert "the version that began it" in failed.value.hint


def test_a_record_that_is_gone_is_named(run: Storage) -> None:
    with pytest.raises(ManifestError, match=r"a\.json: the record is gone"):
        records.read(Outer, run, "a.json")


def test_a_name_with_a_digest_names_what_is_in_it(run: Storage) -> None:
    name = records.write_named(run, "work/files", {"b": Inner("x", 1), "a": Inner("y", 2)})
    assert records.write_named(run, "work/files", {"a": Inner("y", 2), "b": Inner("x", 1)}) == name
    assert records.read_named(dict[str, Inner], run, name) == {"b": Inner("x", 1), "a": Inner("y", 2)}
    records.write(run, name, {"b": Inner("x", 1), "a": Inner("y", 3)})
    with pytest.raises(ManifestError, match="changed after it was written"):
        records.read_named(dict[str, Inner], run, name)
