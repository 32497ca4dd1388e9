"""A verification finds each planted fault in copies of a busy MySQL, and no fault in an exact copy."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.jobs.verify.request import CopyAsked
from airflow_provider_cdc.jobs.verify.rows import KeyRange, draw
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.jobs.verify.planting import FAULTS, ROWS, SPARK, Writers, ask, file_of, plant, without_spark
from tests.seeds import seeds


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@dataclass
class Shop:
    """Tables of one schema, and a lake with their copies."""

    server: MysqlServer
    schema: str
    lake: Path

    def fill(self, tables: list[str], keyless: tuple[str, ...] = ()) -> None:
        with self.server.connect(database=self.schema) as connection, connection.cursor() as cursor:
            cursor.execute("SET cte_max_recursion_depth = 100000")
            for table in tables:
                key = "" if table in keyless else ", PRIMARY KEY (id)"
                cursor.execute(
                    f"CREATE TABLE {table} (id BIGINT NOT NULL, a VARCHAR(40), b VARCHAR(40), n DECIMAL(12,2){key})"
                )
                cursor.execute(
                    f"INSERT INTO {table} "
                    f"WITH RECURSIVE s AS (SELECT 0 n UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS - 1}) "
                    "SELECT n, CONCAT('a', n), IF(n % 7, CONCAT('b', n), ''), n / 7 FROM s"
                )

    def copy(self, **options: Any) -> None:
        run = Pipeline(SPARK, settings_of(self.server), self.lake.as_uri(), [f"{self.schema}.*"], **options)
        run.record()
        run.finish()

    def writes(self, tables: list[str]) -> Writers:
        connection = self.server.connect(database=self.schema)

        def write(chance: random.Random) -> None:
            with connection.cursor() as cursor:
                table, key = chance.choice(tables), chance.randrange(ROWS)
                cursor.execute("BEGIN")
                cursor.execute(f"UPDATE {table} SET a = %s, n = n + 1 WHERE id = %s", (f"w{chance.random()}", key))
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", (chance.randrange(ROWS),))
                cursor.execute(f"INSERT INTO {table} VALUES (%s, 'new', NULL, 0)", (chance.randrange(10**6, 10**12),))
                if chance.random() < 0.3:
                    cursor.execute(f"UPDATE {table} SET id = id + 5000000 WHERE id = %s", (chance.randrange(ROWS),))
                cursor.execute("COMMIT" if chance.random() < 0.9 else "ROLLBACK")

        return Writers(write, 1)

    def asked(self, tables: list[str], **more: Any) -> list[CopyAsked]:
        return [CopyAsked(f"{self.schema}.{table}", **more) for table in tables]

    def verify(self, tables: list[str], **more: Any) -> Any:
        return ask(
            self.lake,
            settings_of(self.server),
            self.asked(tables),
            **{"target": self.lake.as_uri(), "ranges": 0, **more},
        )

    def position(self) -> str:
        return str(self.server.query("SELECT @@global.gtid_executed")[0][0]).replace("\n", "")

    def other_tool(self, folder: Path, table: str) -> Path:
        """Export a table with other names and types, and return the file."""
        rows = self.server.query(f"SELECT id, a, n FROM {self.name(table)}")
        folder.mkdir()
        keys, texts, amounts = (list(column) for column in zip(*rows, strict=True))
        columns = {
            "order_no": pa.array(keys, pa.int32()),
            "first": texts,
            "amount": pa.array(amounts, pa.decimal128(38, 2)),
        }
        pq.write_table(pa.table(columns), folder / "export.parquet")
        return folder / "export.parquet"

    def name(self, table: str) -> str:
        return f"{self.schema}.{table}"


@pytest.fixture
def shop(mysql: MysqlServer, schema: str, tmp_path: Path) -> Shop:
    return Shop(mysql, schema, tmp_path / "lake")


@pytest.mark.slow
def test_each_planted_fault_is_found_under_writes(shop: Shop) -> None:
    tables = [*FAULTS, "stale_row", "bit_rot", "wrong_position"]
    shop.fill(tables)
    shop.copy()
    for table, (fault, _) in FAULTS.items():
        plant(shop.lake, shop.name(table), fault)
    # A row that the source has only now.
    shop.server.query(f"UPDATE {shop.name('stale_row')} SET a = 'later' WHERE id = 5")
    shop.server.query(f"UPDATE {shop.name('wrong_position')} SET a = 'later' WHERE id = 6")
    plant(shop.lake, shop.name("stale_row"), lambda rows: _later(rows, 5))
    path = file_of(shop.lake, shop.name("bit_rot"))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)
    latest = shop.lake / shop.name("wrong_position") / "_latest.json"
    record = json.loads(latest.read_text())
    position = str(shop.server.query("SELECT @@global.gtid_executed")[0][0]).replace("\n", "")
    latest.write_text(json.dumps({**record, "position": position, "initial_gtid_set": position}))

    with shop.writes(tables):
        found = shop.verify(tables)
    for table, (_, kind) in FAULTS.items():
        kinds = {difference.kind for difference in found[table].differences}
        assert kinds == ({kind} if kind else set()), (table, found[table])
        assert found[table].outcome == ("different" if kind else "same")
    assert [one.key["id"] for one in found["exchanged_values"].differences] == ["50", "60"]
    assert found["exchanged_values"].differences[0].columns == ("a",)
    assert found["lost_row"].differences[0].left[0]["a"] == "a300"
    assert found["swapped_columns"].keys_differing == ROWS
    assert [one.key["id"] for one in found["stale_row"].differences] == ["5"]
    assert found["bit_rot"].outcome == "different"
    assert {one.key["id"] for one in found["wrong_position"].differences} == {"6"}


def _later(rows: Any, key: int) -> Any:
    values = rows["a"].to_pylist()
    values[key] = "later"
    return rows.set_column(1, rows.schema.field("a"), [values])


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_a_busy_source_is_no_false_alarm(shop: Shop, seed: int) -> None:
    """Sampled or not, with and without a key, whatever was deleted, inserted or given another key since."""
    shop.fill(["orders", "items", "visits"], keyless=("visits",))
    with shop.writes(["orders", "items", "visits"]) as writers:
        shop.copy()
        writers.wait_for_more(20)
        for number, ranges in enumerate((0, 3)):
            found = shop.verify(["orders", "items", "visits"], ranges=ranges, range_rows=60, seed=seed + number)
            for result in found.values():
                assert result.outcome == "same", result
            assert found["orders"].ranges[0] == ranges
            assert found["visits"].ranges == (0, 0)


@pytest.mark.slow
def test_a_sample_finds_the_faults_in_its_ranges_only(shop: Shop) -> None:
    """``test_ranges.py`` shows at which rate it finds them."""
    shop.fill(["orders"])
    shop.copy()
    plant(shop.lake, shop.name("orders"), FAULTS["lost_row"][0])
    # One sample with the faulty range, and one without it.
    ranges = [KeyRange(number * 60, number * 60 + 60) for number in range(10)]
    samples = [draw("id", ranges, 5, seed, shop.name("orders")) for seed in range(20)]
    hits = [sample is not None and sample.may_have(300, 300) for sample in samples]
    seeds_of_both = (hits.index(True), hits.index(False))
    with shop.writes(["orders"]):
        results = [shop.verify(["orders"], ranges=5, range_rows=60, seed=seed)["orders"] for seed in seeds_of_both]
    assert {result.ranges for result in results} == {(5, 10)}
    assert "5 of 10 ranges: a fault in one range is found with a chance of 50.0%" in results[0].confidence
    assert [result.outcome for result in results] == ["different", "same"]
    for result in results:
        found = [one.key["id"] for one in result.differences]
        assert found == (["300"] if result.outcome == "different" else [])
        assert result.rows[0] == result.rows[1] + len(found)


@pytest.mark.slow
def test_the_copy_of_another_tool(shop: Shop, tmp_path: Path) -> None:
    """Other names and types, in Parquet and CSV, at a position that somebody knows, or only after a time."""
    shop.fill(["orders"])
    position = shop.position()
    rows = pq.read_table(shop.other_tool(tmp_path / "other", "orders"))
    pq.write_table(rows, tmp_path / "whole.parquet")
    csv.write_csv(rows, tmp_path / "whole.csv")
    pq.write_table(rows.slice(0, 300), tmp_path / "half.parquet")
    mapping = {"id": "order_no", "a": "first", "n": "amount"}
    with shop.writes(["orders"]) as writers:
        writers.wait_for_more(20)

        def verify(name: str, **more: Any) -> Any:
            asked = [CopyAsked(shop.name("orders"), (tmp_path / name).as_uri(), mapping)]
            return ask(tmp_path, settings_of(shop.server), asked, ranges=0, **more)["orders"]

        for name in ("whole.parquet", "whole.csv"):
            found = verify(name, at=position)
            assert (found.outcome, found.columns_left_out) == ("same", ("b",)), found
            assert found.rows == (ROWS, ROWS)
        # Its position is unknown: what was touched since then is not verified, and the rest is.
        found = verify("whole.parquet", since=position)
        assert found.outcome == "same", found
        assert found.keys_left_out > 0
        assert 0 < found.rows[0] < ROWS
        found = verify("half.parquet", since=position)
        assert {one.kind for one in found.differences} == {"missing"}
        assert all(int(one.key["id"]) >= 300 for one in found.differences)
        # It does not follow the source, so what is older than the lag is reported.
        assert verify("whole.parquet", lag_seconds=0).outcome == "different"


@pytest.mark.slow
def test_a_table_that_was_altered_since_is_refused_and_the_others_are_verified(shop: Shop) -> None:
    shop.fill(["orders", "items"])
    shop.copy()
    shop.server.query(f"ALTER TABLE {shop.name('items')} ADD COLUMN more INT")
    found = shop.verify(["orders", "items"])
    assert found["orders"].outcome == "same"
    assert found["items"].outcome == "not verified"
    assert "items" in found["items"].why


@pytest.mark.slow
def test_iceberg_tables_with_deletes(shop: Shop) -> None:
    shop.fill(["orders"])
    shop.copy(format="iceberg", run_id="20260101T000000Z-00000001")
    shop.server.query(f"DELETE FROM {shop.name('orders')} WHERE id = 17")
    shop.server.query(f"UPDATE {shop.name('orders')} SET a = 'new' WHERE id = 18")
    shop.copy(format="iceberg", run_id="20260102T000000Z-00000002", refresh="changes")
    (data,) = shop.lake.rglob("*-deletes-*.parquet")
    with shop.writes(["orders"]):
        lake = LakeOptions("iceberg")
        found = shop.verify(["orders"], lake=lake)["orders"]
        assert (found.outcome, found.rows) == ("same", (ROWS - 1, ROWS - 1)), found
        assert shop.verify(["orders"], lake=lake, what="files")["orders"].outcome == "same"
        # Without the deletes, the old rows would be back.
        content = pq.read_table(data)
        pq.write_table(content.slice(0, 1), data)
        found = shop.verify(["orders"], lake=lake)["orders"]
        assert [(one.kind, one.key["id"]) for one in found.differences] in ([("extra", "17")], [("repeated", "18")])
        found = shop.verify(["orders"], lake=lake, what="files")["orders"]
        assert [data.name in text or "digest" in text for text in found.damaged] == [True, True]


@pytest.mark.slow
def test_copies_with_each_other_and_with_their_records(shop: Shop, tmp_path: Path) -> None:
    shop.fill(["orders"])
    shop.copy()
    shop.other_tool(tmp_path / "other", "orders")
    name, mapping = shop.name("orders"), {"id": "order_no", "a": "first", "n": "amount"}
    other = CopyAsked(name, (tmp_path / "other").as_uri(), mapping)

    def verify(what: str) -> Any:
        more = {"what": what, "others": (other,)} if what == "copies" else {"what": what}
        return ask(shop.lake, None, [CopyAsked(name)], target=shop.lake.as_uri(), **more)["orders"]

    assert verify("copies").outcome == "same"
    assert verify("files").outcome == "same"
    path = file_of(shop.lake, name)
    (path.parent / "part-extra.parquet").write_bytes(path.read_bytes())
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    found = verify("files")
    assert [text.partition(":")[2].split()[0] for text in found.damaged] == ["it", "its"] or len(found.damaged) == 2
    assert found.outcome == "different"
    path.unlink()
    assert "it is gone" in " ".join(verify("files").damaged)
    assert verify("copies").outcome == "different"
