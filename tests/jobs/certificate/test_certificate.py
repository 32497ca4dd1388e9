"""Certificates say what the copies contain: a digest that is computed again from the truth has the same value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.certificate import Certificate, decode_certificate
from airflow_provider_cdc.core.parquet import writer
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.jobs.apply.rolled_file import RolledFile
from airflow_provider_cdc.jobs.roll_forward import task
from airflow_provider_cdc.jobs.roll_forward.task import IncomingRows
from airflow_provider_cdc.report.certificates import certificate_page
from airflow_provider_cdc.report.page import to_markdown
from airflow_provider_cdc.sinks.registry import open_sink
from tests.core.digest import recompute
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, SCHEMAS, Entry, Row
from tests.jobs.iceberg_nights import snapshot_of
from tests.jobs.roll_forward.test_roll_forward import FIRST, ROWS, SECOND, inserted, make_source, nights, two_nights
from tests.seeds import seeds
from tests.sinks.catalogs import plain_catalog


def certificate(night: Runner, name: str, format: str = "parquet") -> Certificate:
    run_id = night.run.uri.rpartition("/")[2]
    data = open_sink(format, night.target).certificate(run_id, TableName.parse(name))
    assert data is not None
    return decode_certificate(dict(data), name)


def digest_of(rows: Counter[Row], schema: pa.Schema) -> str:
    columns = zip(*rows.elements(), strict=True) if rows else [() for _ in schema]
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        if pa.types.is_decimal(field.type):
            values = tuple(None if value is None else Decimal(value) for value in values)
        arrays.append(pa.array(list(values), pa.string() if pa.types.is_dictionary(field.type) else field.type))
    return recompute.digest(pa.table(arrays, schema.names))[1]


def check(night: Runner, format: str = "parquet") -> None:
    """The certificates agree with the truth, and their parts with the files."""
    for name, rows, schema in zip(NAMES, night.expected(), SCHEMAS, strict=True):
        found = certificate(night, name, format)
        assert (found.rows, found.digest) == (rows.total(), digest_of(rows, schema)), name
        assert found.definition == "rows-1"
        folder = open_sink(format, night.target).copy_folder(found.run_id, TableName.parse(name))
        for file in found.files:
            rows_of_file = pq.read_table(folder.path(file.name))
            assert recompute.digest(rows_of_file) == (file.rows, file.digest), file.name
            if file.keys:
                keys = rows_of_file[found.key[0]].to_pylist()
                assert file.keys == (str(min(keys)), str(max(keys)))
            assert bool(file.keys) == bool(found.key and file.rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_chains_of_nights(here: MakeRunner, seed: int) -> None:
    source, rng = make_source(seed + 400)
    derived = 0
    for night in nights(here, source, rng, "lake", 4):
        check(night)
        for name in NAMES:
            found = certificate(night, name).derivation
            derived += found is not None and not found.impossible and found.added is not None and found.added.rows > 0
    assert derived


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_chains_of_nights_with_deletes_by_position(
    here: MakeRunner, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The digest of an Iceberg table is that of its rows without the deleted ones. The snapshot and the cut have it."""
    for share in ("TOUCHED_SHARE", "DELETED_SHARE"):
        monkeypatch.setattr(task, share, 2.0)
    source, rng = make_source(seed + 500)
    positions = sorted(rng.sample(range(20, 90), 3))
    deleted = 0
    for number, position in enumerate(positions):
        source.end = rng.randint(position, 90)
        run_id = f"2026010{number + 1}T000000Z-00000000"
        bases = dict.fromkeys(NAMES, f"2026010{number}T000000Z-00000000") if number else {}
        night = here(source, position, run_id=run_id, bases=bases, format="iceberg")
        night.all()
        check(night, "iceberg")
        deleted += sum(file.deleted_rows for name in NAMES for file in certificate(night, name, "iceberg").files)
        cuts = plain_catalog(night.target).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
        for name in NAMES:
            found = certificate(night, name, "iceberg").digest
            assert [row["digest"] for row in cuts if (row["run_id"], row["table"]) == (run_id, name)] == [found]
            summary = snapshot_of(night, name)[1].summary
            assert summary is not None
            assert summary.additional_properties["cdc.digest"] == found
    assert deleted


def test_what_a_certificate_says(here: MakeRunner) -> None:
    night = two_nights(here, inserted(*ROWS), inserted((1, "paid", "")), first=1)
    night.all()
    found = certificate(night, NAMES[0])
    assert (found.table, found.run_id, found.key) == (NAMES[0], SECOND, ("id",))
    assert found.position == night.target.read_json(f"{NAMES[0]}/_latest.json")["position"]
    assert (found.made.mode, found.made.direction, found.made.base_run_id) == ("roll forward", "forward", FIRST)
    assert found.made.window_to == found.position != found.made.window_from
    assert [column.name for column in found.columns] == ["id", "state", "note"]
    assert {"airflow-provider-cdc", "pyarrow", "python"} <= found.versions.keys()
    assert found.derivation is not None
    assert found.derivation.added is not None
    assert found.derivation.added.rows == 1
    kept = [file for file in found.files if file.kept]
    assert kept
    assert all(file.whole_at for file in kept)
    before = night.target.read_json(f"{NAMES[0]}/_certificates/{FIRST}.json")
    assert {file["digest"] for file in before["files"]} >= {file.digest for file in kept}


def lost(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.slice(1)


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array([*range(rows.num_rows), 0]))


def exchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The notes of two rows change places."""
    notes = rows["note"].take(pa.array([1, 0, *range(2, rows.num_rows)]))
    return rows.set_column(2, rows.schema.field(2), notes)


def swapped(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        [rows["id"], rows["note"].cast(rows["state"].type), rows["state"].cast("string")], rows.schema
    )


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "iceberg"])
def test_a_fault_of_the_roll_forward_is_found(here: MakeRunner, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """The new total is known without the files, so files with other rows are not published."""
    source, _ = make_source(1)
    source.history.entries = [inserted(*ROWS), inserted((101, "new", "one"), (102, "new", "two"))]
    source.end = 1
    here(source, 1, run_id=FIRST, format=format).all()
    source.end = 2
    night = here(source, 2, run_id=SECOND, bases=dict.fromkeys(NAMES, FIRST), format=format)
    rows = IncomingRows.rows

    for fault in (lost, doubled, exchanged, swapped):

        def faulty(self: IncomingRows, *, into_files: bool, fault: Any = fault) -> Iterator[tuple[int, pa.RecordBatch]]:
            for number, batch in rows(self, into_files=into_files):
                yield number, fault(batch)

        with monkeypatch.context() as patch:
            patch.setattr(IncomingRows, "rows", faulty)
            with pytest.raises(CopyMismatch, match="the files of the new copy contradict the last copy and the log"):
                night.all()
        assert open_sink(format, night.target).certificate(SECOND, TableName.parse(NAMES[0])) is None, fault.__name__
    night.all()
    check(night, format)


def test_a_row_that_is_not_deleted_is_found(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    for share in ("TOUCHED_SHARE", "DELETED_SHARE"):
        monkeypatch.setattr(task, share, 2.0)
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 100)
    source, _ = make_source(1)
    source.history.entries = [inserted(*ROWS), Entry("commit", tuple((0, row, None) for row in ROWS[:2]))]
    source.end = 1
    here(source, 1, run_id=FIRST, format="iceberg").all()
    source.end = 2
    night = here(source, 2, run_id=SECOND, bases=dict.fromkeys(NAMES, FIRST), format="iceberg")
    positions = RolledFile.deleted_and_marked
    monkeypatch.setattr(RolledFile, "deleted_and_marked", lambda self: positions(self)[1:])
    with pytest.raises(CopyMismatch, match="they have 19 rows, not 18"):
        night.all()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "iceberg"])
def test_the_summary_names_all_digests_and_the_certificate_goes_with_its_copy(here: MakeRunner, format: str) -> None:
    source, _ = make_source(1)
    source.history.entries = [inserted(*ROWS), inserted((101, "new", "one"))]
    for number, run_id in enumerate((FIRST, SECOND), 1):
        source.end = number
        bases = dict.fromkeys(NAMES, FIRST) if number == 2 else {}
        night = here(source, number, run_id=run_id, bases=bases, format=format)
        night.all()
    run = Run.load(night.run)
    text = to_markdown(certificate_page(run))
    found = [certificate(night, name, format) for name in NAMES]
    for one in found:
        assert one.digest in text
        assert all(file.digest in text for file in one.files)
    assert "the last copy and the log" in text
    sink, orders = open_sink(format, night.target), TableName.parse(NAMES[0])
    sink.remove(FIRST, orders, decision_of(Run.load(night.run.parent().folder(FIRST))).files_of(NAMES[0]))
    assert sink.certificate(FIRST, orders) is None
    assert sink.certificate(SECOND, orders) is not None
