"""Tables that other programs change, expire, move and drop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import ConfigurationError, FileDamaged, ManifestError
from airflow_provider_cdc.sinks.iceberg.cut_table import read_cut
from airflow_provider_cdc.sinks.iceberg.producer import files_of
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import iceberg_table, rows_at
from tests.sinks.test_contract import ORDERS, POSTGRES, TABLES, Lake


def ids_of(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def compact(table: Table) -> None:
    """Write all rows into one file, as a compaction does: a snapshot whose operation is replace."""
    rows = table.scan().to_arrow()
    transaction = Transaction(table)
    before = files_of(transaction, table.metadata.snapshot_by_name("main")).data
    # PyIceberg makes no summaries of replacements.
    producer = _OverwriteFiles(operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
    for entry in before.values():
        producer.delete_data_file(entry.data_file)
    producer.append_data_file(plain_copy(table, rows))
    updates, requirements = producer._commit()
    added = cast(AddSnapshotUpdate, updates[0])
    summary = added.snapshot.summary
    assert summary is not None
    replaced = Summary(Operation.REPLACE, **summary.additional_properties)
    added = AddSnapshotUpdate(snapshot=added.snapshot.model_copy(update={"summary": replaced}))
    table.catalog.commit_table(table, requirements, (added, *updates[1:]))


def plain_copy(table: Table, rows: pa.Table) -> Any:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    (file,) = _dataframe_to_data_files(table.metadata, rows, table.io)
    return file


def test_rows_that_another_program_added_are_refused_and_nothing_is_published(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    iceberg_table(lake).append(pa.table({"id": [4]}))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="another program changed rows") as refusal:
            lake.sink.publish(publication)
    assert "rollback" in refusal.value.hint
    assert lake.seen() == [[3, 3, 3]] * 2


def test_rows_that_another_program_deleted_are_refused(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    iceberg_table(lake).delete("id = 3")
    with pytest.raises(ConfigurationError, match="another program changed rows"):
        lake.sink.publish(publication)
    assert lake.seen() == [[3, 3, 3]] * 2


@pytest.mark.parametrize(
    ("change", "rolled"),
    [
        ("append", True),
        ("delete", False),
        pytest.param("overwrite", True, marks=pytest.mark.slow),
        pytest.param("append", False, marks=pytest.mark.long),
        pytest.param("delete", True, marks=pytest.mark.long),
        pytest.param("overwrite", False, marks=pytest.mark.long),
    ],
)
def test_foreign_rows_are_replaced_as_a_whole_with_the_option(lake: Lake, change: str, rolled: bool) -> None:
    first = lake.stage(3)
    lake.sink.publish(first)
    table = iceberg_table(lake)
    if change == "append":
        table.append(pa.table({"id": [4]}))
    elif change == "delete":
        table.delete("id = 3")
    else:
        table.overwrite(pa.table({"id": [9]}))
    # Preflight finds it, too.
    assert "another program changed rows" in lake.sink.foreign_change(ORDERS)
    with pytest.raises(ConfigurationError, match="another program changed rows"):
        lake.sink.check_rows(TABLES)
    lake.options = {"on_foreign_commit": "replace"}
    lake.sink.check_rows(TABLES)
    # A change after preflight meets a copy that is rolled forward: its files are those of the base, and the new ones.
    lake.sink.publish(lake.stage(5, before=first if rolled else None))
    expected = [3, 3, 5, 5, 5] if rolled else [5, 5, 5]
    assert lake.seen() == [expected] * 2
    assert ids_of(iceberg_table(lake)) == expected
    assert [row["id"] for row in rows_at(lake, first.run_id)] == [3, 3, 3]
    lake.options = {}
    lake.sink.check_rows(TABLES)
    assert lake.sink.foreign_change(ORDERS) == ""
    lake.sink.publish(lake.stage(7))
    assert ids_of(iceberg_table(lake)) == [7, 7, 7]


@pytest.mark.slow
def test_a_foreign_append_that_was_rolled_back_is_fine(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    table = iceberg_table(lake)
    table.append(pa.table({"id": [4]}))
    lake.sink.publish(lake.stage(1))
    head = table.metadata.snapshots[0].snapshot_id
    iceberg_table(lake).manage_snapshots().rollback_to_snapshot(head).commit()
    lake.sink.publish(lake.stage(5))
    assert lake.seen() == [[5, 5, 5]] * 2


@pytest.mark.slow
def test_the_run_after_a_compaction_is_right(lake: Lake) -> None:
    older, first = lake.stage(2), lake.stage(3)
    lake.sink.publish(first)
    for table in TABLES:
        compact(iceberg_table(lake, table))
    lake.sink.publish(older)
    assert ids_of(iceberg_table(lake)) == [3, 3, 3]
    second = lake.stage(5, before=first)
    lake.sink.publish(second)
    assert lake.seen() == [[3, 3, 5, 5, 5]] * 2
    assert ids_of(iceberg_table(lake)) == [3, 3, 5, 5, 5]
    compact(iceberg_table(lake))
    lake.sink.publish(lake.stage(7))
    assert ids_of(iceberg_table(lake)) == [7, 7, 7]
    assert [row["id"] for row in rows_at(lake, first.run_id)] == [3, 3, 3]
    # Its files are still there, also where nothing of the main branch names them.
    lake.sink.withdraw([(first.run_id, ORDERS)])
    lake.sink.remove(first.run_id, ORDERS, first.tables[0].added)
    assert sorted(row["id"] for row in rows_at(lake, second.run_id)) == [3, 3, 5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("foreign", [False, True])
def test_a_foreign_append_that_was_compacted_and_expired_is_found(lake: Lake, foreign: bool) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    if foreign:
        iceberg_table(lake).append(pa.table({"id": [4]}))
    else:
        compact(iceberg_table(lake))
    middle = iceberg_table(lake).metadata.current_snapshot_id
    assert middle is not None
    compact(iceberg_table(lake))
    iceberg_table(lake).maintenance.expire_snapshots().by_id(middle).commit()
    if not foreign:
        lake.sink.check_rows(TABLES)
        lake.sink.publish(publication)
        assert lake.seen() == [[5, 5, 5]] * 2
        return
    with pytest.raises(ConfigurationError, match="another program changed rows"):
        lake.sink.check_rows(TABLES)
    with pytest.raises(ConfigurationError, match=f"another program changed rows of this table .*{middle}"):
        lake.sink.publish(publication)
    assert ids_of(iceberg_table(lake)) == [3, 3, 3, 4]
    # Nobody can tell what the expired snapshot was if the metadata files that have it are gone, too.
    for entry in iceberg_table(lake).metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink()
    with pytest.raises(ConfigurationError, match=r"expired the snapshot before the compaction .* unknown"):
        lake.sink.publish(publication)
    lake.options = {"on_foreign_commit": "replace"}
    lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5]] * 2


@pytest.mark.slow
def test_a_table_that_was_dropped_and_made_anew_is_not_the_table(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    plain_catalog(lake.storage).drop_table("shop.orders")
    with pytest.raises(ConfigurationError, match="dropped while the run"):
        lake.sink.publish(publication)
    assert lake.sink.latest(ORDERS) is None
    # It may become a copy of another source.
    lake.sink.check_source([ORDERS], POSTGRES, Lsn(9))
    again = lake.stage(6)
    with pytest.raises(ConfigurationError, match="replaced while the run"):
        lake.sink.publish(publication)
    lake.sink.publish(again)
    assert lake.seen() == [[6, 6, 6]] * 2
    told = lake.sink.latest(ORDERS)
    assert told is not None
    assert told.run_id == again.run_id


@pytest.mark.slow
def test_columns_that_another_program_added_to_the_table_of_cuts_are_ignored(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    with plain_catalog(lake.storage).load_table("cdc.cdc_cuts").update_schema() as change:
        change.add_column("note", StringType())
    for number in (5, 7):
        lake.sink.publish(lake.stage(number))
        assert lake.seen() == [[number] * 3] * 2
    cut = read_cut(lake.storage.uri)
    assert cut is not None
    assert cut[str(ORDERS)].to_arrow()["id"].to_pylist() == [7, 7, 7]


@pytest.mark.parametrize("damage", ["gone", "truncated"])
@pytest.mark.parametrize("name", ["shop.orders", "cdc.cdc_cuts"])
def test_a_metadata_file_that_is_gone_is_an_error_with_a_way_back(lake: Lake, name: str, damage: str) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    location = Path(plain_catalog(lake.storage).load_table(name).metadata_location.removeprefix("file://"))
    location.unlink() if damage == "gone" else location.write_bytes(location.read_bytes()[:100])
    for look in (lambda: lake.sink.head(ORDERS), lambda: lake.sink.publish(publication)):
        with pytest.raises(FileDamaged, match=f"{name}: the metadata file that the catalog names is gone or damaged"):
            look()
    # As the hint says.
    plain_catalog(lake.storage).drop_table(name)
    assert lake.sink.head(ORDERS) is None
    lake.sink.publish(lake.stage(7))
    assert lake.seen() == [[7, 7, 7]] * 2


def test_a_table_that_another_program_filled_is_refused_before_the_run(lake: Lake) -> None:
    catalog = plain_catalog(lake.storage)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
    with pytest.raises(ConfigurationError, match="no run of this package published it"):
        lake.stage(3)


def test_a_tag_that_was_moved_is_refused(lake: Lake) -> None:
    first, second = lake.stage(3), lake.stage(5)
    lake.sink.publish(first)
    table = iceberg_table(lake)
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, f"cdc-{second.run_id}").commit()
    with pytest.raises(FileDamaged, match="names a snapshot of another run"):
        lake.sink.publish(second)
    assert lake.seen() == [[3, 3, 3]] * 2


def test_a_base_whose_tag_is_gone_is_refused(lake: Lake) -> None:
    first = lake.stage(3)
    lake.sink.publish(first)
    lake.sink.publish(lake.stage(4))
    second = lake.stage(5, before=first)
    iceberg_table(lake).manage_snapshots().remove_tag(f"cdc-{first.run_id}").commit()
    with pytest.raises(FileDamaged, match="which this copy is made from, is gone"):
        lake.sink.publish(second)
    assert lake.seen() == [[4, 4, 4]] * 2


def test_an_expired_snapshot_of_the_latest_copy_is_told(lake: Lake) -> None:
    publication = lake.stage(3)
    lake.sink.publish(publication)
    compact(iceberg_table(lake))
    table = iceberg_table(lake)
    snapshot = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().remove_tag(f"cdc-{publication.run_id}").commit()
    iceberg_table(lake).maintenance.expire_snapshots().by_id(snapshot).commit()
    with pytest.raises(ManifestError, match="is gone"):
        lake.sink.latest(ORDERS)
    lake.sink.publish(lake.stage(5))
    assert lake.seen() == [[5, 5, 5]] * 2


@pytest.mark.slow
def test_a_catalog_that_was_restored_to_copies_whose_files_are_gone_has_a_way_back(lake: Lake) -> None:
    first, second, third = (lake.stage(number) for number in (3, 5, 7))
    lake.sink.publish(first)
    catalog = Path(lake.storage.path("_catalog.db"))
    backup = catalog.read_bytes()
    lake.sink.publish(second)
    lake.sink.publish(third)
    lake.sink.withdraw([(first.run_id, table) for table in TABLES])
    for table, change in zip(TABLES, first.tables, strict=True):
        lake.sink.remove(first.run_id, table, change.added)
    catalog.write_bytes(backup)
    head = lake.sink.head(ORDERS)
    assert head is not None
    assert head.run_id == first.run_id
    for table in TABLES:
        with pytest.raises(ManifestError, match=r"the snapshot \d+ of the latest copy is gone") as error:
            lake.sink.latest(table)
        # As docs/iceberg.md says.
        snapshot = error.value.message.split()[2]
        plain_catalog(lake.storage).load_table("cdc.cdc_cuts").delete(f"snapshot_id == {snapshot}")
        assert lake.sink.latest(table) is None
    after = lake.stage(9)
    lake.sink.publish(after)
    assert lake.seen() == [[9, 9, 9]] * 2
    assert ids_of(iceberg_table(lake)) == [9, 9, 9]
    for table, change in zip(TABLES, first.tables, strict=True):
        lake.sink.remove(first.run_id, table, change.added)
    assert lake.sink.copies(ORDERS) == [after.run_id]
    lake.sink.publish(lake.stage(11, before=after))
    assert lake.seen() == [[9, 9, 11, 11, 11]] * 2


def test_a_table_that_another_program_partitioned_is_refused_before_the_run(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    with iceberg_table(lake).update_spec() as update:
        update.add_field("id", IdentityTransform())
    with pytest.raises(ConfigurationError, match="is partitioned"):
        lake.sink.publish(publication)
    with pytest.raises(ConfigurationError, match="is partitioned"):
        lake.stage(7)
    with iceberg_table(lake).update_spec() as update:
        update.remove_field("id")
    lake.sink.publish(replace(publication))
    assert lake.seen() == [[5, 5, 5]] * 2


def test_files_that_an_orphan_removal_took_are_noticed_before_anything_is_committed(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    Path(lake.files_of(publication, TABLES[0]).path(publication.tables[0].added[0].name)).unlink()
    with pytest.raises(FileDamaged, match="is gone"):
        lake.sink.publish(publication)
    assert lake.seen() == [[3, 3, 3]] * 2
