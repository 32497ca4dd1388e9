"""Changes that lead to the copies of a cut: files in the target, beside no other copy."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.run.manifest import FeedGap
from airflow_provider_cdc.errors import ChangesMissing, ManifestError
from airflow_provider_cdc.lake import open_dataset, read_changes, read_cut
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg.cut_table import Cut
from tests.sinks.iceberg.runs import run_of
from tests.sinks.test_contract import LINES, ORDERS, TABLES, Lake
from tests.test_lake import three_nights


def cut_of(lake: Lake, run: Publication | None = None) -> Cut:
    cut = read_cut(lake.storage.uri, run_id=run.run_id if run else None)
    assert cut is not None
    return cut


@pytest.mark.slow
def test_changes_lead_to_the_copies_of_the_cut_that_is_given(lake: Lake) -> None:
    nights = three_nights(lake)
    target = lake.storage.uri
    for table in map(str, TABLES):
        for since in (nights[0].run_id, nights[0].position):
            changes = read_changes(target, table, since, cut=cut_of(lake))
            assert open_dataset(changes).to_table()["order"].to_pylist() == list(range(1, 15))
            assert (changes.from_position, changes.position) == (nights[0].position, nights[2].position)
            assert (changes.run_id, changes.rows) == (nights[2].run_id, 14)
        # A reader that keeps to an older cut gets the changes up to that one.
        older = read_changes(target, table, cut=cut_of(lake, nights[1]))
        assert (older.from_run_id, older.run_id, older.rows) == (nights[0].run_id, nights[1].run_id, 2)
        with pytest.raises(
            ChangesMissing, match=f"changes before the copy of run {nights[0].run_id}, .* are not published"
        ):
            read_changes(target, table, cut=cut_of(lake, nights[0]))


@pytest.mark.slow
def test_changes_since_the_cut_itself_have_columns_and_no_rows(lake: Lake) -> None:
    nights = three_nights(lake)
    target = lake.storage.uri
    wanted = open_dataset(read_changes(target, str(ORDERS), cut=cut_of(lake))).schema
    for night in nights:
        cut = cut_of(lake, night)
        nothing = read_changes(target, str(ORDERS), cut.position, cut=cut)
        assert (nothing.files, nothing.rows, nothing.run_id) == ((), 0, night.run_id)
        assert open_dataset(nothing).to_table().num_rows == 0
        # The first copy has no changes that show their columns.
        assert open_dataset(nothing).schema.equals(wanted, check_metadata=False)


@pytest.mark.slow
def test_a_table_that_the_last_run_left_out_has_the_changes_of_the_run_that_copied_it(lake: Lake) -> None:
    nights = three_nights(lake)
    last = lake.stage(4)
    lake.sink.publish(replace(last, tables=last.tables[:1], skipped=(LINES,)))
    cut = cut_of(lake)
    assert cut.run_id == last.run_id
    changes = read_changes(lake.storage.uri, str(LINES), nights[0].run_id, cut=cut)
    assert (changes.run_id, changes.position, changes.rows) == (nights[2].run_id, nights[2].position, 14)
    with pytest.raises(ChangesMissing, match=f"changes before the copy of run {last.run_id}, .* are not published"):
        read_changes(lake.storage.uri, str(ORDERS), nights[0].run_id, cut=cut)


def test_changes_that_begin_anew_at_a_copy_of_a_cut_lead_to_no_copy_before(lake: Lake) -> None:
    nights = [lake.stage(number) for number in (1, 2)]
    orders = replace(nights[1].tables[0], feed_gap=FeedGap(nights[0].run_id, nights[0].position, "TRUNCATE TABLE", 2))
    nights[1] = replace(nights[1], tables=(orders, *nights[1].tables[1:]))
    for night in nights:
        lake.sink.publish(night)
    target = lake.storage.uri
    with pytest.raises(ChangesMissing, match=r"begin anew at .*: TRUNCATE TABLE"):
        read_changes(target, str(ORDERS), nights[0].position, cut=cut_of(lake))
    assert read_changes(target, str(ORDERS), nights[1].position, cut=cut_of(lake)).rows == 0
    head = lake.sink.head(ORDERS)
    assert head is not None
    assert (head.feed_gap["from"], head.feed_gap["reason"]) == (nights[0].position, "TRUNCATE TABLE")
    lake.sink.withdraw([(nights[1].run_id, ORDERS)])
    lake.sink.remove(nights[1].run_id, ORDERS, orders.added)
    assert not lake.storage.exists(f"{ORDERS}/_changes/{nights[1].run_id}")


@pytest.mark.slow
def test_a_copy_that_the_cut_does_not_have_is_refused(lake: Lake) -> None:
    nights = three_nights(lake)
    cut, target = cut_of(lake), lake.storage.uri
    with pytest.raises(ChangesMissing, match="has no copy of the table") as refusal:
        read_changes(target, "shop.other", cut=cut)
    assert "shop.lines, shop.orders" in refusal.value.hint
    with pytest.raises(ChangesMissing, match="all of the table"):
        read_changes(target, "shop.orders", nights[2].run_id, cut=cut, where="id > 3")
    with pytest.raises(ChangesMissing, match="no copy as plain Parquet files"):
        read_changes(target, "shop.orders")
    older = cut_of(lake, nights[0])
    for table in TABLES:
        lake.sink.withdraw([(nights[0].run_id, table)])
        lake.sink.remove(nights[0].run_id, table, nights[0].tables[TABLES.index(table)].added)
    with pytest.raises(ManifestError, match="is gone"):
        read_changes(target, "shop.orders", cut=older)


def test_changes_without_rows_have_the_columns_of_every_type(lake: Lake) -> None:
    """No file shows them: no run has published changes of this table."""
    rows = pa.table({"id": pa.array([1], pa.uint64()), "text": ["a"], "raw": [b"a"], "vector": [[0.5]]})
    lake.sink.publish(run_of(lake, 1, {ORDERS: rows}, ("id",)))
    cut = cut_of(lake)
    schema = open_dataset(read_changes(lake.storage.uri, str(ORDERS), cut.run_id, cut=cut)).schema
    kinds = {column.name: column.type for column in schema.field("after").type}
    vector = kinds.pop("vector")
    assert pa.types.is_list(vector)
    assert vector.value_type == pa.float64()
    assert kinds == {"id": pa.decimal128(20, 0), "text": pa.string(), "raw": pa.binary()}
