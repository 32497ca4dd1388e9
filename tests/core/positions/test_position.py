"""Positions of all kinds behave alike, and records store them in the text form that every version reads."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.kinds import KINDS, parse_position
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.core.run.manifest import Base, Manifest
from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import PositionError
from tests.runs import manifest_of, run_folder, snapshot_result

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POSITIONS: dict[str, list[Position]] = {
    "mysql": [GtidSet(), GtidSet.parse(f"{SERVER}:1-5"), GtidSet.parse(f"{SERVER}:1-9:tag:1")],
    "postgres": [Lsn(0), Lsn(9), Lsn.parse("16/B374D848")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_positions_go_to_executors_and_through_text_unchanged(kind: str) -> None:
    for position in POSITIONS[kind]:
        assert pickle.loads(pickle.dumps(position)) == position
        assert parse_position(kind, str(position)) == position
        assert KINDS[kind].parse(str(position)) == type(position).expect(position) == position


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_position_has_all_of_an_earlier_one(kind: str) -> None:
    first, second, third = POSITIONS[kind]
    assert first <= second <= third
    assert not third <= second
    assert not second <= first
    assert first <= first


def test_positions_of_two_kinds_are_not_compared() -> None:
    pair: list[Position] = [GtidSet(), Lsn(0)]
    for one, other in (pair, pair[::-1]):
        assert one != other
        with pytest.raises(TypeError):
            assert one <= other
        with pytest.raises(PositionError, match="another kind of source"):
            type(one).expect(other)


def test_a_position_of_a_kind_that_is_not_known() -> None:
    with pytest.raises(PositionError, match="'oracle'"):
        parse_position("oracle", "1")


def as_written(text: str, base: str, kind: str, key: str) -> Any:
    """A manifest as the version before wrote it: its positions are texts."""
    lake = Storage("/nowhere")
    whole: dict[str, Any] = records.encode(manifest_of(lake, kind=kind, position_key=key))
    bases = {"20251231T000000Z-00000000": {"position": base, "identity": {}, "record": "files"}}
    return json.loads(json.dumps({**whole, "initial_position": text, "bases": bases}))


@pytest.mark.parametrize(
    ("kind", "key", "text", "base"),
    [
        ("mysql", "initial_gtid_set", f"{SERVER}:1-9:tag:1", f"{SERVER}:1-5"),
        ("postgres", "initial_lsn", "16/B374D848", "0/9"),
        # Not in this package's spelling: rewriting the record must not change its digest.
        ("mysql", "initial_gtid_set", f"{SERVER.upper()}:1-5:6-9", f"{SERVER}:1"),
        ("postgres", "initial_lsn", "0/000000a0", "0/00000009"),
    ],
)
def test_records_keep_the_text_that_was_written(kind: str, key: str, text: str, base: str) -> None:
    data = as_written(text, base, kind, key)
    manifest = records.decode(Manifest, data, "manifest")
    assert manifest.initial == KINDS[kind].parse(text)
    (run_id,) = manifest.bases
    assert manifest.start_of(run_id) == KINDS[kind].parse(base)
    assert json.loads(json.dumps(records.encode(manifest))) == data
    assert records.digest_of(manifest) == records.digest_of(data)


def test_the_position_of_a_run_is_the_one_in_its_records(tmp_path: Any) -> None:
    lake, text = Storage(str(tmp_path)), "0/00000009"
    manifest = manifest_of(lake, kind="postgres", position_key="initial_lsn", initial_position=text)
    run = Run.create(manifest)
    assert (run.position, run.position_text) == (Lsn(9), text)
    later = replace(manifest, bases={"x": Base("0/1", Facts({}), "")})
    assert later.start_of("x") == Lsn(1)
    run.finish_step(SNAPSHOT, snapshot_result(snapshot_upper="0/C", log_end="0/C 0/B 00"))
    (name,) = (tmp_path / "_runs").rglob(f"ledger/000002-{run.state.chain[0]}.json")
    written = json.loads(name.read_text())["entry"]["result"]
    assert (written["snapshot_upper"], written["log_end"]) == ("0/C", "0/C 0/B 00")
    assert Run.load(run_folder(lake)).position == Lsn(9)
