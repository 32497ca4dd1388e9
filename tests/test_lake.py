"""What `airflow_provider_cdc.lake` returns to readers, and that the libraries they use can read it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.options.lake import CODECS
from airflow_provider_cdc.core.run.commit_record import Feed, feed_schema
from airflow_provider_cdc.core.run.manifest import FeedGap
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ChangesMissing, ConfigurationError, ManifestError
from airflow_provider_cdc.lake import open_dataset, read_changes, read_latest
from airflow_provider_cdc.report.facts import snippets_of
from airflow_provider_cdc.sinks import parquet
from airflow_provider_cdc.sinks import parquet as latest
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.beside_copies import next_order
from harness.s3_server import s3_environment
from tests.sinks.test_contract import MYSQL, ORDERS, SCHEMA, SERVER, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[1] / "docs/reading.md"
SNIPPETS = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
CHANGES = PAGE.with_name("changes.md").read_text()
OF_CHANGES = dict(re.findall(r"^### (\w+)\n\n```python\n(.*?)```", CHANGES, re.MULTILINE | re.DOTALL))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    # A URI has %20 where the store has a blank.
    return Lake("parquet", Storage((tmp_path / "my lake").as_uri()))


def test_the_latest_copy_is_the_one_at_the_greatest_position(lake: Lake) -> None:
    assert read_latest(lake.storage.uri, "shop.orders") is None
    newer, older = lake.stage(7, count=4), lake.stage(5)
    lake.sink.publish(newer)
    lake.sink.publish(older)
    copy = read_latest(lake.storage.uri, "shop.orders")
    assert copy is not None
    assert (copy.run_id, copy.rows, copy.position) == (newer.run_id, 4, f"{SERVER}:1-7")
    assert copy.source == MYSQL
    assert len(copy.files) == 4
    assert copy.files == tuple(sorted(copy.files))
    assert all(file.startswith(f"{copy.path}/part-") for file in copy.files)
    assert open_dataset(copy).to_table()["id"].to_pylist() == [7] * 4


def test_what_is_invisible_to_readers_is_no_file_of_a_copy(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    before = read_latest(lake.storage.uri, "shop.orders")
    assert before is not None
    folder = Storage(before.path)
    for name in ("_SUCCESS", ".part-0.crc"):
        folder.write_json(name, {})
    assert read_latest(lake.storage.uri, "shop.orders") == before


def test_a_copy_whose_files_are_gone_is_not_a_smaller_table(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    copy = read_latest(lake.storage.uri, "shop.orders")
    assert copy is not None
    Storage(copy.path).delete_file(copy.files[0].rpartition("/")[2])
    with pytest.raises(ManifestError, match="lacks 1 of its files"):
        read_latest(lake.storage.uri, "shop.orders")
    lake.storage.delete_folder(f"shop.orders/{copy.path.rpartition('/')[2]}")
    with pytest.raises(ManifestError, match="lacks 3 of its files"):
        read_latest(lake.storage.uri, "shop.orders")


def test_a_reader_whom_a_newer_copy_overtakes_is_told_of_that_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keep = 1, the copy to which the reader was directed is removed before the reader has listed its files."""
    nights = [lake.stage(number) for number in (1, 2, 3)]
    lake.sink.publish(nights[0])
    original = latest.read_latest

    def overtaken(*arguments: Any) -> Any:
        found = original(*arguments)
        if len(nights) > 1:
            before = nights.pop(0)
            with monkeypatch.context() as patch:
                patch.setattr(parquet, "read_latest", original)
                lake.sink.publish(nights[0])
                lake.sink.remove(before.run_id, before.tables[0].table, before.tables[0].added)
        return found

    monkeypatch.setattr(parquet, "read_latest", overtaken)
    copy = read_latest(lake.storage.uri, "shop.orders")
    assert copy is not None
    assert open_dataset(copy).to_table()["id"].to_pylist() == [3] * 3


@pytest.mark.parametrize(("target", "table"), [("lake", "shop.orders"), ("/lake", "orders"), ("s3://u:p@x/l", "a.b")])
def test_what_names_no_table_in_no_lake_is_refused(target: str, table: str) -> None:
    with pytest.raises(ConfigurationError):
        read_latest(target, table)


def test_a_copy_in_an_object_store_is_read_from_there(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    lake = Lake("parquet", Storage(f"s3://lake/{tmp_path.name}"))
    lake.sink.publish(lake.stage(5))
    copy = read_latest(lake.storage.uri, "shop.orders")
    assert copy is not None
    assert open_dataset(copy).count_rows() == 3


@pytest.mark.parametrize("folder", ["l[1]", "a*b", "q?r", "c{d,e}", "m\\n", "a%20b"])
def test_a_path_that_libraries_take_for_a_pattern_is_not_named_to_them(folder: str, tmp_path: Path) -> None:
    """They would read the files of another lake that the pattern fits."""
    lake = Lake("parquet", Storage(str(tmp_path / folder)))
    nights = three_nights(lake)
    copy = read_latest(lake.storage.uri, "shop.orders")
    changes = read_changes(lake.storage.uri, "shop.orders", nights[0].run_id)
    assert copy is not None
    assert open_dataset(copy).count_rows() == copy.rows
    assert open_dataset(changes).count_rows() == 14
    for one in (copy, changes):
        with pytest.raises(ConfigurationError, match="pattern"):
            _ = one.locations


def count(orders: Any) -> int:
    return orders.count() if type(orders).__module__.startswith("pyspark") else len(orders)


@pytest.mark.slow
@pytest.mark.parametrize("library", sorted(SNIPPETS))
def test_the_snippets_of_the_documents_read_every_row_of_each_codec(library: str, lake: Lake, request: Any) -> None:
    names: dict[str, Any] = {}
    if library == "Spark":
        spark: SparkSession = request.getfixturevalue("spark")
        names["spark"] = spark
    elif library != "PyArrow":
        pytest.importorskip(library.lower())
    lake.codecs = CODECS
    lake.sink.publish(lake.stage(5, count=4))
    first = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert first
    for snippet in (first[1].replace("s3://lake/raw", lake.storage.uri), SNIPPETS[library]):
        exec(snippet, names)
    assert count(names["orders"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["lake", "it's a läke"])
def test_the_snippets_of_a_report_read_the_rows_and_columns_of_the_copy(
    folder: str, tmp_path: Path, request: Any
) -> None:
    lake = Lake("parquet", Storage((tmp_path / folder).as_uri()))
    lake.codecs = CODECS
    lake.sink.publish(lake.stage(5, count=4))
    copy = read_latest(lake.storage.uri, "shop.orders")
    assert copy is not None
    wanted = open_dataset(copy).to_table().to_pylist()
    table = Table(TableName("shop", "orders"), (), ())
    read = 0
    for snippet in snippets_of(table, lake.storage.uri, copy.path):
        names: dict[str, Any] = {"spark": request.getfixturevalue("spark") if "Spark" in snippet.title else None}
        if "SQL" in snippet.title:
            duckdb = pytest.importorskip("duckdb")
            rows = duckdb.sql(snippet.code.rstrip(";")).to_arrow_table().to_pylist()
        else:
            exec(snippet.code, names)
            rows = names["rows"]
            rows = (
                [row.asDict() for row in rows.collect()]
                if "Spark" in snippet.title
                else rows.to_dict("records")
                if "pandas" in snippet.title
                else rows.to_pylist()
            )
        assert sorted(rows, key=repr) == sorted(wanted, key=repr), snippet.title
        read += 1
    assert read == 5


def with_changes(lake: Lake, publication: Publication, before: Publication, first: int, count: int) -> Publication:
    """The same run with ``count`` changes since ``before``, each in its own file. The first has the order number
    ``first``."""
    schema, tables = feed_schema(SCHEMA), []
    for change in publication.tables:
        files: list[StagedFile] = []
        for order in range(first, first + count):
            rows = {
                "operation": ["insert"],
                "position": [f"{SERVER}:{order}"],
                "order": [order],
                "commit_time": [None],
                "before": [None],
                "after": [{"id": 10 * order}],
            }
            with publication.staging.writer(f"staged/{change.table}/part-{order:012}", schema) as writer:
                writer.write(pa.table(rows, schema=schema))
            files += writer.files
        tables.append(replace(change, feed=Feed(before.run_id, before.position, first, tuple(files))))
    return replace(publication, tables=tuple(tables))


def three_nights(lake: Lake) -> list[Publication]:
    nights = [lake.stage(number) for number in (1, 2, 3)]
    nights[1] = with_changes(lake, nights[1], nights[0], 1, 2)
    nights[2] = with_changes(lake, nights[2], nights[1], 3, 12)
    for one in nights:
        lake.sink.publish(one)
    return nights


@pytest.mark.parametrize("library", sorted(OF_CHANGES))
def test_the_snippets_of_the_documents_read_every_change(library: str, lake: Lake, request: Any) -> None:
    nights = three_nights(lake)
    names: dict[str, Any] = {"last": nights[0].run_id}
    if library == "Spark":
        names["spark"] = request.getfixturevalue("spark")
    elif library != "PyArrow":
        pytest.importorskip(library.lower())
    asked = re.search(r"```python\n(.*?)```", CHANGES, re.DOTALL)
    assert asked
    for snippet in (asked[1].replace("s3://lake/raw", lake.storage.uri), OF_CHANGES[library]):
        exec(snippet, names)
    assert count(names["updates"]) == 14
    assert names["last"] == nights[2].position


def test_changes_of_several_runs_join_in_their_order(lake: Lake) -> None:
    nights = three_nights(lake)
    target = lake.storage.uri
    for since in (nights[0].run_id, nights[0].position):
        found = read_changes(target, "shop.orders", since)
        assert open_dataset(found).to_table()["order"].to_pylist() == list(range(1, 15))
        assert (found.from_run_id, found.from_position) == (nights[0].run_id, nights[0].position)
    assert read_changes(target, "shop.orders").rows == 12


@pytest.mark.parametrize("named", ["run_id", "position"])
def test_where_nothing_is_new_there_are_changes_without_rows(named: str, lake: Lake) -> None:
    latest = three_nights(lake)[2]
    target = lake.storage.uri
    nothing = read_changes(target, "shop.orders", getattr(latest, named))
    assert (nothing.files, nothing.rows, nothing.from_position) == ((), 0, latest.position)
    found = open_dataset(nothing).to_table()
    assert found.num_rows == 0
    assert found.schema == open_dataset(read_changes(target, "shop.orders")).schema


def test_changes_do_not_begin_at_a_position_that_a_history_had_which_ended(lake: Lake) -> None:
    """The copy that a reader has may be of before the source was set back, and another one be at its position now."""
    nights = three_nights(lake)
    target, path = lake.storage.uri, "shop.orders/_latest.json"
    ended = {"id": "a", "run_id": "20251231T000000Z-00000000", "position": f"{SERVER}:1-2", "why": "", "found_by": ""}
    history = {"id": "b", "number": 2, "superseded": [ended]}
    lake.storage.write_json(path, {**lake.storage.read_json(path), "history": history})
    for early in nights[:2]:
        with pytest.raises(ChangesMissing, match="was set back") as refusal:
            read_changes(target, "shop.orders", early.position)
        assert "run_id" in refusal.value.hint
        assert read_changes(target, "shop.orders", early.run_id).from_position == early.position
    # The history that ended never had this one.
    assert read_changes(target, "shop.orders", nights[2].position).rows == 0
    copy = read_latest(target, "shop.orders")
    assert copy is not None
    assert copy.history == history


def test_changes_that_begin_anew_at_an_unmoved_position_do_not_begin_at_this_position(lake: Lake) -> None:
    """Nothing was logged between the two copies, but their rows differ, because of an option or an unlogged change."""
    # The later of two copies at one position is the one with the greater id.
    nights = [lake.stage(number, run_id=f"2026010{number}T000000Z-00000000") for number in (1, 2, 3, 4)]
    same = nights[0].position
    gap = FeedGap(nights[0].run_id, same, "the last copy was made with `unrepresentable` = `error`", 2)
    nights[1] = replace(nights[1], position=same, tables=tuple(replace(one, feed_gap=gap) for one in nights[1].tables))
    # Nothing is logged before the third night, either.
    nights[2] = replace(with_changes(lake, nights[2], nights[1], 2, 0), position=same)
    nights[3] = with_changes(lake, nights[3], nights[2], 2, 3)
    target = lake.storage.uri
    for number, night in enumerate(nights):
        lake.sink.publish(night)
        if number == 0:
            assert read_changes(target, "shop.orders", same).rows == 0
            continue
        with pytest.raises(ChangesMissing, match=f"same position {same} as the copy before it") as refusal:
            read_changes(target, "shop.orders", same)
        assert "run_id" in refusal.value.hint
        with pytest.raises(ChangesMissing, match="begin anew"):
            read_changes(target, "shop.orders", nights[0].run_id)
        assert read_changes(target, "shop.orders", nights[1].run_id).rows == (3 if number == 3 else 0)
    assert read_changes(target, "shop.orders", nights[3].position).rows == 0


def test_changes_that_begin_anew_lead_to_no_copy_before(lake: Lake) -> None:
    """The error has what a consumer needs to go on. The gap is removed with its copy."""
    nights = [lake.stage(number) for number in (1, 2, 3)]
    gap = FeedGap(nights[0].run_id, f"{SERVER}:1", "TRUNCATE TABLE (binlog.000007:4)", 8)
    orders = replace(nights[1].tables[0], feed_gap=gap)
    nights[1] = replace(nights[1], tables=(orders, *nights[1].tables[1:]))
    nights[2] = with_changes(lake, nights[2], nights[1], 8, 2)
    target = lake.storage.uri
    lake.sink.publish(nights[0])
    for night, asked in ((nights[1], ("", nights[0].position)), (nights[2], (nights[0].position, nights[0].run_id))):
        lake.sink.publish(night)
        for since in asked:
            with pytest.raises(ChangesMissing, match=re.escape(f"anew at {SERVER}:1-2 (the copy of run")) as refusal:
                read_changes(target, "shop.orders", since)
            assert refusal.value.where == "shop.orders"
            assert f"(of run {nights[0].run_id}, at {SERVER}:1): TRUNCATE TABLE" in refusal.value.message
            assert "its position" in refusal.value.hint
    assert read_changes(target, "shop.orders", nights[1].position).rows == 2
    record = f"shop.orders/_changes/{nights[1].run_id}/_gap.json"
    told = lake.storage.read_json(record)
    assert {**told, "reason": ""} == {
        "run_id": nights[1].run_id,
        "from_run_id": nights[0].run_id,
        "from": f"{SERVER}:1",
        "to": f"{SERVER}:1-2",
        "first_order": 8,
        "reason": "",
    }
    # Fields that a later version adds do not matter.
    lake.storage.write_json(record, {**told, "more": 1})
    with pytest.raises(ChangesMissing, match="TRUNCATE"):
        read_changes(target, "shop.orders", nights[0].position)
    lake.storage.write_json(record, {**told, "first_order": "8"})
    with pytest.raises(ManifestError, match="first_order"):
        read_changes(target, "shop.orders", nights[0].position)
    lake.sink.remove(nights[1].run_id, ORDERS, orders.added)
    assert not lake.storage.exists(f"shop.orders/_changes/{nights[1].run_id}")
    with pytest.raises(ChangesMissing, match=f"the copy of run {nights[1].run_id}, .* are not published"):
        read_changes(target, "shop.orders", nights[0].position)


def test_what_is_damaged_or_gone_among_changes_is_said(lake: Lake) -> None:
    nights = three_nights(lake)
    record = f"shop.orders/_changes/{nights[1].run_id}/_feed.json"
    told = lake.storage.read_json(record)
    for wrong in ({**told, "first_order": 7}, {**told, "to": "elsewhere"}):
        lake.storage.write_json(record, wrong)
        with pytest.raises(ChangesMissing, match=nights[1].run_id):
            read_changes(lake.storage.uri, "shop.orders", nights[0].run_id)
    damaged: list[Any] = [{**told, "rows": 7}, {**told, "run_id": nights[2].run_id}, {"rows": 2}, []]
    for other in damaged:
        lake.storage.write_json(record, other)
        with pytest.raises(ManifestError):
            read_changes(lake.storage.uri, "shop.orders", nights[0].run_id)
    # Fields that a later version adds do not matter.
    lake.storage.write_json(record, {**told, "more": 1})
    assert read_changes(lake.storage.uri, "shop.orders", nights[0].run_id).rows == 14
    lake.storage.delete_file(record)
    with pytest.raises(ChangesMissing, match=nights[1].run_id):
        read_changes(lake.storage.uri, "shop.orders", nights[0].run_id)
    with pytest.raises(ChangesMissing, match="no copy yet"):
        read_changes(lake.storage.uri, "shop.other")
    # Copies as Iceberg tables leave changes here, and no record of a latest copy.
    lake.storage.write_json("shop.iceberg/_changes/20260101T000000Z-00000000/_changes.json", {})
    with pytest.raises(ChangesMissing, match="no copy as plain Parquet") as refusal:
        read_changes(lake.storage.uri, "shop.iceberg")
    assert "cut=read_cut(catalog)" in refusal.value.hint


def test_reading_imports_neither_airflow_nor_spark_nor_a_driver() -> None:
    code = (
        "import sys, airflow_provider_cdc.lake;"
        "sys.exit(any(name.split('.')[0] in ('airflow', 'pyspark', 'pymysql', 'numba') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("stays", [True, False])
def test_a_lake_that_is_mounted_or_copied_elsewhere_is_read_where_it_was_asked_for(lake: Lake, stays: bool) -> None:
    """The record names the place that the run wrote to: another machine may have the lake at another one."""
    nights = three_nights(lake)
    here, there = Path(lake.storage.path()), Path(lake.storage.path()).with_name("elsewhere")
    (shutil.copytree if stays else shutil.move)(here, there)
    copy = read_latest(there.as_uri(), "shop.orders")
    assert copy is not None
    assert copy.path == f"{there.as_uri()}/shop.orders/snapshot={nights[2].run_id}"
    assert all(file.startswith(copy.path) for file in copy.files)
    assert open_dataset(copy).count_rows() == copy.rows
    changes = read_changes(there.as_uri(), "shop.orders", nights[0].run_id)
    assert changes.copy_file.startswith(copy.path)
    assert open_dataset(changes).count_rows() == 14


def test_a_record_whose_files_have_no_names_is_damaged(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    record = "shop.orders/_latest.json"
    told = lake.storage.read_json(record)
    for files in ([{"rows": 1}], [{"name": 5}]):
        lake.storage.write_json(record, {**told, "files": files})
        with pytest.raises(ManifestError, match="file in the record has no name"):
            read_latest(lake.storage.uri, "shop.orders")


def test_numbers_go_on_after_all_changes_in_the_lake(lake: Lake) -> None:
    """Runs may overlap, and a copy without changes has no number. A damaged record hides no other one."""
    table = TableName.parse("shop.orders")
    assert next_order(lake.storage, table) == 1
    nights = three_nights(lake)
    assert next_order(lake.storage, table) == 15
    lake.storage.write_json(f"shop.orders/_changes/{nights[1].run_id}/_feed.json", {})
    gap = FeedGap(nights[2].run_id, nights[2].position, "TRUNCATE TABLE", 40)
    night = lake.stage(4)
    lake.sink.publish(replace(night, tables=tuple(replace(one, feed_gap=gap) for one in night.tables)))
    assert next_order(lake.storage, table) == 40
