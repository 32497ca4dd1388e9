"""A verification of copies of a busy PostgreSQL: with a standing slot, and without before images."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.jobs.verify.request import CopyAsked
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer
from tests.jobs.verify.planting import FAULTS, ROWS, SPARK, Writers, ask, plant, without_spark


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@dataclass
class Shop:
    """Tables of one database, and a lake with their copies."""

    server: PostgresServer
    database: str
    lake: Path

    @property
    def settings(self) -> Any:
        return replace(settings_of(self.server), database=self.database)

    def fill(self, tables: list[str], identity: str = "FULL") -> None:
        with self.server.connect(database=self.database) as connection:
            for table in tables:
                connection.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, a TEXT, b TEXT, n NUMERIC(12,2))")
                connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
                connection.execute(
                    f"INSERT INTO {table} SELECT n, 'a' || n, CASE WHEN n % 7 = 0 THEN '' ELSE 'b' || n END, n / 7.0 "
                    f"FROM generate_series(0, {ROWS - 1}) n"
                )
                connection.execute(f"ANALYZE {table}")

    def copy(self, **options: Any) -> None:
        run = Pipeline(SPARK, self.settings, self.lake.as_uri(), ["public.*"], **options)
        run.record()
        run.finish()
        run.release()

    def writes(self, tables: list[str]) -> Writers:
        connection = self.server.connect(database=self.database, autocommit=False)

        def write(chance: random.Random) -> None:
            table = chance.choice(tables)
            connection.execute(
                f"UPDATE {table} SET a = %s, n = n + 1 WHERE id = %s", (f"w{chance.random()}", chance.randrange(ROWS))
            )
            connection.execute(f"DELETE FROM {table} WHERE id = %s", (chance.randrange(ROWS),))
            connection.execute(f"INSERT INTO {table} VALUES (%s, 'new', NULL, 0)", (chance.randrange(10**6, 10**12),))
            if chance.random() < 0.3:
                connection.execute(f"UPDATE {table} SET id = id + 5000000 WHERE id = %s", (chance.randrange(ROWS),))
            connection.commit() if chance.random() < 0.9 else connection.rollback()

        return Writers(write, 1)

    def verify(self, tables: list[str], **more: Any) -> Any:
        asked = [CopyAsked(f"public.{table}") for table in tables]
        usual = {"target": self.lake.as_uri(), "ranges": 0, "standing_slot": "night"}
        return ask(self.lake, self.settings, asked, **{**usual, **more})

    def own_slots(self) -> list[tuple[Any, ...]]:
        """The slots, except the standing one."""
        return self.server.query(
            f"SELECT slot_name FROM pg_replication_slots WHERE database = '{self.database}' "
            "AND slot_name NOT LIKE '%night%'"
        )


@pytest.fixture
def shop(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(postgres, database, tmp_path / "lake")
    yield shop
    with session(shop.settings) as connection:
        name = name_of(connection, "night")
    slots.drop(shop.settings, name, name)


@pytest.mark.slow
def test_each_planted_fault_is_found_under_writes(shop: Shop) -> None:
    tables = [*FAULTS, "stale_row"]
    shop.fill(tables)
    shop.copy(standing_slot="night")
    for table, (fault, _) in FAULTS.items():
        plant(shop.lake, f"public.{table}", fault)
    with shop.server.connect(database=shop.database) as connection:
        connection.execute("UPDATE stale_row SET a = 'later' WHERE id = 5")
    plant(shop.lake, "public.stale_row", lambda rows: _later(rows))
    with shop.writes(tables) as writers:
        writers.wait_for_more(20)
        found = shop.verify(tables)
        sampled = shop.verify(["unharmed", "lost_last_row"], ranges=3, range_rows=100, seed=3)
    for table, (_, kind) in FAULTS.items():
        kinds = {difference.kind for difference in found[table].differences}
        assert kinds == ({kind} if kind else set()), (table, found[table])
    assert [one.key["id"] for one in found["stale_row"].differences] == ["5"]
    assert (sampled["unharmed"].outcome, sampled["unharmed"].ranges) == ("same", (3, 6))
    assert shop.own_slots() == []


def _later(rows: pa.Table) -> pa.Table:
    values = rows["a"].to_pylist()
    values[rows["id"].to_pylist().index(5)] = "later"
    return rows.set_column(1, rows.schema.field("a"), [values])


@pytest.mark.slow
def test_without_before_images_touched_keys_are_not_verified(shop: Shop, tmp_path: Path) -> None:
    """A copy that follows the source, of a table whose log has only keys."""
    shop.fill(["orders"], identity="DEFAULT")
    rows = shop.server.connect(database=shop.database).execute("SELECT id, a, b, n FROM orders").fetchall()
    names = ("id", "a", "b", "n")
    whole = pa.table({name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    pq.write_table(whole, tmp_path / "whole.parquet")
    pq.write_table(FAULTS["changed_value"][0](whole), tmp_path / "wrong.parquet")

    def verify(name: str) -> Any:
        asked = [CopyAsked("public.orders", (tmp_path / name).as_uri())]
        # The position begins before the first write: the writers begin during the wait.
        return ask(tmp_path, shop.settings, asked, lag_seconds=1, ranges=0)["orders"]

    found = verify("whole.parquet")
    assert (found.outcome, found.keys_left_out) == ("same", 0), found
    late = Late(shop)
    with late:
        found = verify("whole.parquet")
    assert found.outcome == "same", found
    assert found.keys_left_out > 0
    assert found.rows[0] < ROWS
    assert shop.own_slots() == []
    # Afterwards, what was written is older than the lag.
    assert verify("wrong.parquet").outcome == "different"


class Late:
    """Writes once a slot of the verification exists, so that all writes are after its position."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._writers = shop.writes(["orders"])
        write = self._writers._write

        def wait(chance: random.Random) -> None:
            if shop.own_slots():
                write(chance)

        self._writers._write = wait

    def __enter__(self) -> None:
        self._writers.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._writers.__exit__(*exception)


def test_without_a_standing_slot_an_earlier_position_is_refused_with_the_reason(shop: Shop) -> None:
    shop.fill(["orders"])
    shop.copy()
    found = shop.verify(["orders"], standing_slot="")["orders"]
    assert found.outcome == "not verified"
    assert "standing_slot" in found.why
    assert shop.own_slots() == []


@pytest.mark.slow
def test_a_copy_that_was_made_without_before_images(shop: Shop) -> None:
    """The rows cannot be rewound to the position of the copy, so the keys that were touched since are left out."""
    tables = ["unharmed", "changed_value", "lost_row", "altered"]
    shop.fill(tables, identity="DEFAULT")
    # The standing slot records the copies of runs that began with it.
    shop.copy(standing_slot="night")
    for table in ("changed_value", "lost_row"):
        plant(shop.lake, f"public.{table}", FAULTS[table][0])
    with shop.server.connect(database=shop.database) as connection:
        for table in tables:
            connection.execute(f"UPDATE {table} SET a = 'later' WHERE id BETWEEN 400 AND 409")
        connection.execute("ALTER TABLE altered ADD COLUMN more INT")
    found = shop.verify(tables)
    assert {table: result.outcome for table, result in found.items()} == {
        "unharmed": "same",
        "changed_value": "different",
        "lost_row": "different",
        "altered": "not verified",
    }
    assert (found["unharmed"].rows, found["unharmed"].keys_left_out) == ((ROWS - 10, ROWS - 10), 10)
    assert [one.key["id"] for one in found["lost_row"].differences] == ["300"]
    assert shop.own_slots() == []
    assert shop.verify(["unharmed"], standing_slot="")["unharmed"].outcome == "not verified"
