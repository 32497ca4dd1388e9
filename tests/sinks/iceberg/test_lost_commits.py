"""Catalogs that lost commits of tables whose snapshots a cut names, as version 0.2.0 could leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sinks.base import Publication, ReadsRows
from airflow_provider_cdc.sinks.iceberg.cut_table import read_cut
from harness.mysql_server import MysqlServer
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import iceberg_table, rows_at, set_back
from tests.sinks.iceberg.test_nights import by_duckdb, by_id, catalog_of, night
from tests.sinks.test_contract import LINES, MYSQL, ORDERS, TABLES, Lake


def lose(lake: Lake, table: TableName = ORDERS) -> Path:
    """Have the catalog lose the last commit of a table. Return the metadata file that it had written."""
    lost = iceberg_table(lake, table).metadata_location
    set_back(lake.storage.path("_catalog.db"), table)
    assert iceberg_table(lake, table).metadata_location != lost
    return Path(lost.removeprefix("file://"))


def read_all(lake: Lake, lost: Publication) -> None:
    """Check that each operation that reads finds the lost copy of a table, and leaves the catalog as it is."""
    catalog = Path(lake.storage.path("_catalog.db"))
    before = catalog.read_bytes()
    head, latest = lake.sink.head(ORDERS), lake.sink.latest(ORDERS)
    assert head is not None
    assert latest is not None
    assert head.run_id == latest.run_id == lost.run_id
    assert {name.rpartition("/")[2] for name in latest.files} == {file.base_name for file in lost.tables[0].added}
    sink = lake.sink
    assert isinstance(sink, ReadsRows)
    rows = [row for batch in sink.read(lost.run_id, ORDERS) for row in batch["id"].to_pylist()]
    assert rows == [3, 3, 3]
    assert lost.run_id not in {file.run_id for file in lake.sink.stray_files(ORDERS)}
    lake.sink.check_rows(TABLES)
    lake.sink.check_source(TABLES, MYSQL, GtidSet.parse(lost.position))
    assert lake.sink.foreign_change(ORDERS) == ""
    assert catalog.read_bytes() == before


@pytest.mark.parametrize("how", ["prepare", "remove"])
def test_a_change_of_the_table_completes_the_lost_commit_first(lake: Lake, how: str) -> None:
    first, lost = lake.stage(1), lake.stage(3)
    lake.sink.publish(first)
    lake.sink.publish(lost)
    lose(lake)
    if how == "prepare":
        lake.stage(5)
    else:
        lake.sink.withdraw([(first.run_id, ORDERS)])
        lake.sink.remove(first.run_id, ORDERS, first.tables[0].added)
    assert lake.seen() == [[3, 3, 3]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [0, 1])
def test_the_next_run_completes_a_lost_commit(lake: Lake, earlier: int) -> None:
    first, lost, after = (lake.stage(number) for number in (1, 3, 5))
    for publication in [first, lost][1 - earlier :]:
        lake.sink.publish(publication)
    lose(lake)
    with pytest.raises(ValueError, match="Snapshot not found"):
        lake.seen()
    read_all(lake, lost)
    lake.sink.publish(after)
    assert lake.seen() == [[5, 5, 5]] * 2
    assert [row["id"] for row in rows_at(lake, lost.run_id)] == [3, 3, 3]


def test_the_same_task_again_completes_the_commits_that_its_cut_names(lake: Lake) -> None:
    publication = lake.stage(3)
    lake.sink.publish(publication)
    for table in TABLES:
        lose(lake, table)
    lake.sink.publish(publication)
    assert lake.seen() == [[3, 3, 3]] * 2


def test_files_of_a_lost_commit_are_not_stray(lake: Lake) -> None:
    publication = lake.stage(3)
    lake.sink.publish(publication)
    lose(lake)
    names = [f"data/{file.base_name}" for file in publication.tables[0].added]
    assert lake.sink.stray_files(ORDERS) == []
    lake.sink.delete_stray(ORDERS, names)
    lake.sink.publish(publication)
    assert lake.seen() == [[3, 3, 3]] * 2


@pytest.mark.parametrize(
    "what",
    [
        "metadata",
        "data",
        "another commit",
        *(pytest.param(what, marks=pytest.mark.slow) for what in ("truncated", "manifest", "another table")),
    ],
)
def test_a_commit_that_cannot_be_completed_is_an_error_with_a_way_back(lake: Lake, what: str) -> None:
    first, lost, after = (lake.stage(number) for number in (1, 3, 5))
    lake.sink.publish(first)
    lake.sink.publish(lost)
    metadata_file = lose(lake)
    files = {
        "data": f"data/{lost.tables[0].added[0].base_name}",
        "manifest": next(path.name for path in metadata_file.parent.glob(f"cdc-{lost.run_id}-*.avro")),
    }
    if what == "metadata":
        metadata_file.unlink()
    elif what == "truncated":
        metadata_file.write_bytes(metadata_file.read_bytes()[:-100])
    elif what == "data":
        (metadata_file.parent.parent / files["data"]).unlink()
    elif what == "manifest":
        (metadata_file.parent / files["manifest"]).unlink()
    elif what == "another commit":
        with iceberg_table(lake).transaction() as transaction:
            transaction.set_properties(owner="somebody")
    else:
        metadata_file.write_text(
            metadata_file.read_text().replace(
                str(iceberg_table(lake).metadata.table_uuid), "0" * 8 + "-" + "-".join(["0000"] * 3) + "-" + "0" * 12
            )
        )
    before = iceberg_table(lake).metadata_location
    with pytest.raises(ManifestError, match=r"the snapshot \d+ of the latest copy is gone") as error:
        lake.sink.head(ORDERS)
    assert iceberg_table(lake).metadata_location == before
    head = lake.sink.head(LINES)
    assert head is not None
    # As docs/iceberg.md says.
    snapshot = error.value.message.split()[2]
    plain_catalog(lake.storage).load_table("cdc.cdc_cuts").delete(f"snapshot_id == {snapshot}")
    heads = [lake.sink.head(table) for table in TABLES]
    assert [one.run_id for one in heads if one] == [first.run_id, lost.run_id]
    lake.sink.publish(after)
    assert lake.seen() == [[5, 5, 5]] * 2
    assert [row["id"] for row in rows_at(lake, first.run_id)] == [1, 1, 1]


@pytest.mark.slow
def test_a_night_rolls_a_copy_with_position_deletes_forward_whose_commit_was_lost(
    spark: SparkSession, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, note VARCHAR(200))")
    values = ", ".join(f"({n}, REPEAT('x', {n % 200}))" for n in range(2000))
    mysql.query(f"INSERT INTO {schema}.t VALUES {values}")
    night(spark, mysql, schema, tmp_path, 1)
    expected = []
    for number in (2, 3):
        mysql.query(f"UPDATE {schema}.t SET note = 'night {number}' WHERE id IN (7, {100 + number})")
        mysql.query(f"DELETE FROM {schema}.t WHERE id IN ({200 + number}, {900 + number})")
        mysql.query(f"INSERT INTO {schema}.t VALUES ({5000 + number}, 'new')")
        run = night(spark, mysql, schema, tmp_path, number)
        assert "rolled forward" in run.plans[0].reason
        expected.append(by_id(mysql.query(f"SELECT * FROM {schema}.t")))
        table = catalog_of(tmp_path).load_table(f"{schema}.t")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert int(snapshot.summary.additional_properties["total-position-deletes"]) > 0
        set_back(str(tmp_path / "_catalog.db"), TableName(schema, "t"))
    # The last commit is still lost. The next run completes it before it changes the table, and the cut can be read.
    night(spark, mysql, schema, tmp_path, 4)
    for number, rows in zip((2, 3), expected, strict=True):
        cut = read_cut(tmp_path.as_uri(), run_id=f"202601{number:02}T000000Z-00000000")
        assert cut is not None
        one = cut[f"{schema}.t"]
        assert by_id([tuple(row.values()) for row in one.to_arrow().to_pylist()]) == rows
        assert by_id(by_duckdb(catalog_of(tmp_path), f"{schema}.t", one.snapshot_id)) == rows
