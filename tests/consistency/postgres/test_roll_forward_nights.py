"""Nightly runs on a real server, each compared bit for bit with a full copy at the same position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CopyMismatch, ExactnessError, PreflightError
from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.standing_record import load, store
from harness.pipeline import Pipeline, settings_of
from tests.conftest import PostgresFactory
from tests.consistency.acting import DURING, act_during
from tests.consistency.postgres.nights import FULL, Nights
from tests.consistency.postgres.servers import ENDS
from tests.seeds import some
from tests.soon import soon
from tests.sources.postgres.catalog_reading import frames_of, read_tables, states_of
from tests.sources.postgres.values import CASES, SETUP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "identity"),
    [
        (ENDS[-1], "DEFAULT"),
        pytest.param(ENDS[0], "FULL", marks=pytest.mark.long),
        pytest.param(ENDS[0], "DEFAULT", marks=pytest.mark.long),
        pytest.param(ENDS[-1], "FULL", marks=pytest.mark.long),
    ],
)
def test_every_type_at_its_extremes(
    version: int,
    identity: str,
    postgres_factory: PostgresFactory,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where rows are read again, not all of them wait for the view.
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    nights = Nights(postgres_factory(None, version), spark, tmp_path)
    kinds = list(CASES.items())
    most = max(len(values) for _, values in kinds)
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(kinds))
    made = ", made bigint GENERATED ALWAYS AS (c1 * 2::bigint) STORED" if version >= 18 or identity != "FULL" else ""
    made += ", seen bigint GENERATED ALWAYS AS (c1 * 3::bigint) VIRTUAL" if version >= 18 and identity != "FULL" else ""
    nights.do(SETUP)
    # Without FULL, what has no key is read as a whole.
    tables = {"t": "id int PRIMARY KEY", **({"keyless": "id int"} if identity == "FULL" else {})}
    for name, key in tables.items():
        nights.do(f"CREATE TABLE {name} ({key}, {columns}{made})", f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
        for number in range(most):
            row = ", ".join(values[number] if number < len(values) else "NULL" for _, values in kinds)
            nights.do(f"INSERT INTO {name} VALUES ({number}, {row})")
    nights.first()
    for name in tables:
        # What was is taken out by its before image; what is comes from its after image, which does not repeat what is
        # stored out of line.
        nights.do(
            f"UPDATE {name} SET id = id + 100 WHERE id % 2 = 1",
            f"UPDATE {name} SET c0 = 5 WHERE id % 4 = 0",
            f"UPDATE {name} SET c1 = 6 WHERE id % 4 = 0",
            f"DELETE FROM {name} WHERE id = 2",
        )
    nights.rolled()
    nights.do("DELETE FROM t WHERE id > 100", *("UPDATE keyless SET id = -id" for name in tables if name != "t"))
    nights.rolled()


@pytest.mark.slow
def test_a_transaction_that_is_prepared_on_one_night_and_committed_on_the_next(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"))
    nights.do("INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30)")
    nights.first()
    with nights.server.connect() as writer:
        writer.execute("BEGIN; UPDATE stock SET v = 0 WHERE id = 2; DELETE FROM stock WHERE id = 3")
        writer.execute("PREPARE TRANSACTION 'long'")
    nights.do("UPDATE stock SET v = 11 WHERE id = 1")
    # A slot waits for what is prepared; the position of a time does not.
    run = nights.night(as_of=str(nights.ask("SELECT pg_current_wal_flush_lsn()")))
    position = run.record()
    nights.do("COMMIT PREPARED 'long'", "UPDATE stock SET v = v + 1")
    assert sorted(pq.read_table(Storage(run.finish()["published"]["public.stock"]).path())["v"].to_pylist()) == [
        11,
        20,
        30,
    ]
    assert run.found["consolidate"]["position"] == position
    nights.rolled()


@pytest.mark.slow
@pytest.mark.parametrize("identity", some("DEFAULT", "FULL"))
def test_partitions_and_rows_that_move_between_them(nights: Nights, identity: str) -> None:
    def identified(*names: str) -> list[str]:
        return [f"ALTER TABLE {name} REPLICA IDENTITY {identity}" for name in names]

    nights.do(
        "CREATE TABLE tree (note text, id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF tree FOR VALUES FROM (0) TO (50)",
        # Its columns come in another order.
        "CREATE TABLE high (id int NOT NULL, n int, note text)",
        "ALTER TABLE tree ATTACH PARTITION high FOR VALUES FROM (50) TO (500)",
        *identified("tree", "low", "high"),
        "INSERT INTO tree SELECT repeat(md5(i::text), 300), i, i FROM generate_series(1, 99) i",
    )
    nights.first()
    nights.do(
        "UPDATE tree SET id = id + 100 WHERE id < 20",
        "UPDATE tree SET n = 0 WHERE id % 3 = 0",
        "DELETE FROM tree WHERE id % 7 = 0",
        "UPDATE tree SET id = id - 100 WHERE id > 115",
        # It came and went, and rows through it.
        "CREATE TABLE more PARTITION OF tree FOR VALUES FROM (500) TO (600)",
        *identified("more"),
        "UPDATE tree SET id = 500 + id WHERE id BETWEEN 60 AND 64",
        "UPDATE tree SET id = id - 500 WHERE id IN (560, 561)",
        "DROP TABLE more",
    )
    nights.rolled()
    nights.do("CREATE TABLE more PARTITION OF tree FOR VALUES FROM (500) TO (600)", *identified("more"))
    nights.do("INSERT INTO tree VALUES ('x', 555, 1)")
    run = nights.night("auto")
    run.record()
    assert "read in full: it, its schema or the publication was altered" in run.plans[0].reason
    nights.check(run.finish()["published"])
    nights.do("UPDATE tree SET id = 1000 - id WHERE id > 500")
    nights.rolled()


@pytest.mark.slow
def test_what_happens_between_preflight_and_the_position(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"), "INSERT INTO stock VALUES (1, 1)")
    nights.first()
    run = nights.night("auto")
    plans = run.preflight()
    assert plans[0].base
    nights.do("TRUNCATE stock")
    run.preflight = lambda: plans  # type: ignore[method-assign]
    with pytest.raises(PreflightError, match="altered since"):
        run.record()
    nights.do("INSERT INTO stock VALUES (5, 50)")
    run = nights.night("auto")
    run.record()
    assert "read in full" in run.plans[0].reason
    assert run.finish()["rows"] == {"public.stock": 1}
    nights.do("UPDATE stock SET v = 1")
    nights.rolled()


@pytest.mark.slow
def test_a_run_rests_on_what_it_was_begun_with_whatever_happens_later(nights: Nights) -> None:
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"), "INSERT INTO stock VALUES (1, 1)")
    nights.first()
    nights.do("INSERT INTO stock VALUES (2, 2)")
    run = nights.night()
    run.record()
    name = nights.ask("SELECT pubname FROM pg_publication WHERE pubname LIKE 'cdc_standing%'")
    nights.do("TRUNCATE stock", "ALTER TABLE stock ADD n int", f"SELECT pg_drop_replication_slot('{name}')")
    assert run.finish()["rows"] == {"public.stock": 2}
    # No needed log is missing any more: the next night begins with a full read, and reports this.
    run = nights.night("auto")
    run.record()
    assert "it was lost" in run.plans[0].reason
    nights.check(run.finish()["published"])
    nights.do("INSERT INTO stock VALUES (7, 7, 7)")
    nights.rolled()


@pytest.mark.slow
def test_a_change_that_the_log_lost_stops_the_run(nights: Nights) -> None:
    """Also over a schema change: the row of the copy and the old row in the log become rows of the present table."""
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"))
    nights.do("INSERT INTO stock VALUES (1, 10), (2, 20)")
    nights.first()
    settings = settings_of(nights.server)
    name = nights.ask("SELECT pubname FROM pg_publication")
    nights.do(f"ALTER PUBLICATION {name} DROP TABLE stock", "UPDATE stock SET v = 7 WHERE id = 2")
    nights.do(f"ALTER PUBLICATION {name} ADD TABLE stock", "UPDATE stock SET v = 8 WHERE id = 2")
    # The record is forged, because nothing else would show that the log lacked the table for a while.
    with session(settings) as connection:
        record = load(connection, name)
        assert record is not None
        now = read_tables(connection, [TableName("public", "stock")])
        states, frames = states_of(connection, name, now), frames_of(connection, name, now)
        tables = {
            table: replace(joined, state=states[table], frame=frames[table]) for table, joined in record.tables.items()
        }
        store(connection, name, replace(record, tables=tables))
    for ddl in ("", "ALTER TABLE stock RENAME v TO w; ALTER TABLE stock ADD n int DEFAULT 7; UPDATE stock SET w = 9"):
        nights.do(*filter(None, ddl.split("; ")))
        run = nights.night()
        run.record()
        assert ("RENAME v TO w" in run.plans[0].reason) == bool(ddl)
        run.snapshot()
        run.extract_delta()
        with pytest.raises(CopyMismatch, match="differs from the old row"):
            run.consolidate()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"refresh": "changes"}, {"refresh": "auto", "changes": True}])
def test_a_time_that_cannot_be_met_is_no_reason_to_give_up_copies_or_changes(
    nights: Nights, asked: dict[str, Any]
) -> None:
    """The hint for a copy that cannot be rolled forward would have them read in full, for nothing."""
    nights.do("CREATE TABLE stock (id int PRIMARY KEY, v int)", FULL.format("stock"))
    nights.first()
    for when, why in [("2099-01-01T00:00:00Z", "is in the future"), ("0/5", "lies before the standing slot")]:
        with pytest.raises(PreflightError, match=why) as refusal:
            nights.night(as_of=when, **asked).preflight()
        assert [problem.where for problem in refusal.value.problems] == ["parameter as_of"]


@pytest.mark.slow
def test_tables_that_join_are_read_and_all_are_of_one_position(nights: Nights) -> None:
    nights.do("CREATE TABLE a (id int PRIMARY KEY, v int)", FULL.format("a"), "INSERT INTO a VALUES (1, 1), (2, 2)")
    nights.first()
    nights.do("CREATE TABLE b (id int PRIMARY KEY, v int)", FULL.format("b"), "INSERT INTO b VALUES (1, 1)")
    nights.do("UPDATE a SET v = 3")
    run = nights.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    # After the position: what is read live goes back, and what is rolled forward ends before it.
    nights.do("UPDATE a SET v = 4", "UPDATE b SET v = 4", "INSERT INTO b VALUES (2, 2)", "DELETE FROM a WHERE id = 1")
    tables = run.finish()["published"]
    found = {name: pq.read_table(Storage(uri).path()).to_pylist() for name, uri in tables.items()}
    assert {name: sorted((row["id"], row["v"]) for row in rows) for name, rows in found.items()} == {
        "public.a": [(1, 3), (2, 3)],
        "public.b": [(1, 1)],
    }
    nights.rolled()


@pytest.mark.slow
def test_copies_that_are_altered_before_the_run_moves_are_read_again_unless_they_must_be_rolled_forward(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(name: str) -> None:
        nights.do(f"CREATE TABLE {name} (id int PRIMARY KEY)", FULL.format(name), f"INSERT INTO {name} VALUES (1), (2)")

    def act(run: Pipeline, tables: str) -> None:
        def alter() -> None:
            nights.do(f"TRUNCATE {tables}", "INSERT INTO a VALUES (3)")

        with monkeypatch.context() as patch:
            act_during(run, DURING[0], alter, patch)
            run.snapshot()

    for name in ("a", "b", "quiet"):
        create(name)
    nights.first()
    create("joined")
    run = nights.night("auto")
    run.record()
    act(run, "a, b, joined")
    (restart,) = Run.load(run.run).manifest.restarts
    assert {*restart.tables} == {"public.a", "public.b", "public.joined"}
    assert all("rewritten or truncated" in why or "altered" in why for why in restart.tables.values()), restart.tables
    run.extract_delta()
    nights.check(run.consolidate()["published"])
    # Changes without a gap. The altered tables are read in full once more.
    run = nights.night("auto")
    run.record()
    run.finish()
    create("late")
    run = nights.night("auto", changes=True)
    run.record()
    with pytest.raises(PreflightError, match=r"public\.a: .*altered"):
        act(run, "a, late")
    assert not Run.load(run.run).manifest.restarts
    run.release()


@pytest.mark.long
def test_copies_of_several_nights_and_two_lakes_share_one_slot(nights: Nights, tmp_path: Path) -> None:
    nights.do(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "ab"), *map(FULL.format, "ab"))
    nights.do("INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)")
    nights.first()
    other = Nights(nights.server, nights.spark, tmp_path / "other")
    nights.do("UPDATE a SET v = 2", "UPDATE b SET v = 2")
    other.first()
    # Without b: its copy stays that of the night before.
    nights.do(
        "UPDATE a SET v = 3",
        "ALTER TABLE b ADD n int, ALTER v TYPE bigint",
        "UPDATE b SET v = 3",
        "INSERT INTO b VALUES (9, 9)",
    )
    run = nights.night(tables=["public.a"])
    run.record()
    run.finish()
    nights.do("UPDATE a SET v = 4")
    run = nights.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    nights.check(run.finish()["published"])
    nights.do("UPDATE a SET v = 5", "UPDATE b SET n = 5")
    run = nights.night(tables=["public.b"])
    run.record()
    run.finish()
    nights.do("DELETE FROM a", "INSERT INTO b VALUES (7, 7, 7)")
    # The two copies are of two positions.
    nights.rolled()
    run = other.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    other.check(run.finish()["published"])


KEYED = "CREATE TABLE {0} (id int PRIMARY KEY, v int); INSERT INTO {0} SELECT i, i FROM generate_series(1, 9) i"


@pytest.mark.slow
def test_tables_of_all_kinds_where_rows_are_read_again(nights: Nights) -> None:
    nights.do(*(KEYED.format(name) for name in ("a", "b")), FULL.format("b"), "CREATE TABLE k (v int)")
    nights.do("INSERT INTO k VALUES (1), (1)")
    nights.first()
    nights.do("UPDATE a SET v = 0 WHERE id < 3", "DELETE FROM a WHERE id = 4", "UPDATE b SET id = 99 WHERE id = 1")
    nights.do(KEYED.format("late"), "INSERT INTO k VALUES (2)")
    run = nights.night("auto")
    run.record()
    reasons = {plan.table.name: plan.reason for plan in run.plans}
    assert {plan.table.name: bool(plan.base) for plan in run.plans} == {"a": True, "b": True, "k": False, "late": False}
    assert "of its changed rows" in reasons["k"]
    # All tables are of the view's position, whichever way they come there.
    nights.do(*(f"UPDATE {name} SET v = -v WHERE id > 6" for name in ("a", "b", "late")), "DELETE FROM k WHERE v = 1")
    nights.check(run.finish()["published"])
    nights.do("INSERT INTO a VALUES (50, 50)", "UPDATE late SET id = -id")
    run = nights.night("auto", tables=["public.*", "!public.k"])
    run.record()
    assert {bool(plan.base) for plan in run.plans} == {True}
    nights.check(run.finish()["published"], ["public.*", "!public.k"])
    with pytest.raises(PreflightError, match=r"public\.k: its copy cannot be rolled forward"):
        nights.night("changes").preflight()


@pytest.mark.slow
def test_passes_over_the_log_since_the_copy_and_over_that_since_the_run_began(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the one tells later than a pass is later for the other, too, which has told far fewer changes."""
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    nights.do(KEYED.format("a"))
    nights.first()
    nights.do(KEYED.format("late"), *(f"UPDATE a SET v = {number} WHERE id = 1" for number in range(30)))
    run = nights.night("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, False]
    nights.do("UPDATE late SET v = -1 WHERE id < 4")
    read = reread_passes._pass
    passes: list[set[str]] = []

    def reading(*arguments: Any) -> set[str]:
        found = read(*arguments)
        if not passes:
            nights.do(
                "UPDATE late SET v = -2 WHERE id = 1", "DELETE FROM late WHERE id = 2", "DELETE FROM a WHERE id = 1"
            )
        passes.append(found)
        return found

    monkeypatch.setattr(reread_passes, "_pass", reading)
    nights.check(run.finish()["published"])
    assert len(passes) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (
            "ALTER PUBLICATION {0} DROP TABLE a; UPDATE a SET v = 7; ALTER PUBLICATION {0} ADD TABLE a",
            "was altered since",
        ),
        ("TRUNCATE a", "TRUNCATE|rewritten or truncated"),
        ("ALTER TABLE a ADD n int", "columns"),
        ("ALTER TABLE a REPLICA IDENTITY NOTHING", "replica identity"),
    ],
)
def test_what_breaks_the_proof_until_the_view(nights: Nights, harm: str, error: str) -> None:
    nights.do(KEYED.format("a"), KEYED.format("b"))
    nights.first()
    run = nights.night()
    run.record()
    name = nights.ask("SELECT pubname FROM pg_publication WHERE pubname LIKE 'cdc_standing%'")
    nights.do("UPDATE a SET v = 5", harm.format(name))
    with pytest.raises(ExactnessError, match=error):
        run.finish()
    run.release()
    soon(lambda: nights.ask("SELECT count(*) FROM pg_replication_slots"), 1)


@pytest.mark.slow
def test_rows_that_are_deleted_while_the_publication_lacks_them_are_not_blamed_on_an_index(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has changes of rows that no longer exist, as if the index of the key did not find them."""
    nights.do(KEYED.format("a"))
    nights.first()
    nights.do("UPDATE a SET v = 5")
    run = nights.night()
    run.record()
    name = nights.ask("SELECT pubname FROM pg_publication WHERE pubname LIKE 'cdc_standing%'")
    harm = f"ALTER PUBLICATION {name} DROP TABLE a", "DELETE FROM a", f"ALTER PUBLICATION {name} ADD TABLE a"
    act_during(run, DURING[0], lambda: nights.do(*harm), monkeypatch)
    with pytest.raises(ExactnessError, match="was altered since"):
        run.finish()
    run.release()


@pytest.mark.slow
def test_a_table_that_is_altered_after_preflight_is_read_in_full_and_the_others_are_rolled_forward(
    postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """A night that may miss its past (`missing_past`) goes on with the present."""
    nights = Nights(postgres_factory(), spark, tmp_path)
    for name in ("a", "b"):
        nights.do(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", FULL.format(name))
        nights.do(f"INSERT INTO {name} SELECT n, n FROM generate_series(1, 50) n")
    nights.first()
    nights.do("UPDATE a SET v = -v WHERE id < 9", "DELETE FROM b WHERE id > 44")
    midnight = nights.ask("SELECT clock_timestamp()::text")
    nights.do("UPDATE b SET v = 0 WHERE id = 1")
    run = nights.night("auto", as_of=midnight)
    run.preflight()
    assert [bool(plan.base) for plan in run.plans] == [True, True]
    nights.do("ALTER TABLE a ADD n int DEFAULT 7", "INSERT INTO a VALUES (51, 51, 8)")
    run.lock_and_record(may_miss_past=True)
    manifest = Run.load(run.run).manifest
    assert manifest.missed_as_of == midnight
    assert {str(entry.table.name): bool(entry.base) for entry in manifest.tables} == {
        "public.a": False,
        "public.b": True,
    }
    nights.check(run.finish()["published"])
    nights.rolled()


@pytest.mark.slow
def test_schema_changes_are_carried(postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path) -> None:
    """On the last nights, no row of a table changes, and a table is altered whose copy was itself carried."""
    nights = Nights(postgres_factory(None, ENDS[0]), spark, tmp_path)
    nights.do(
        "CREATE TABLE stock (id int PRIMARY KEY, a int, b varchar(20), d text, c numeric(6, 2) NOT NULL)",
        "INSERT INTO stock VALUES (1, 1, 'one', 'I', 1), (2, 2, NULL, 'II', 2), (3, 3, 'three', 'III', 3)",
        "CREATE TABLE notes (text varchar(9), n int)",
        "INSERT INTO notes VALUES ('a', 1), ('a', 2), ('b', 3), (NULL, NULL)",
        "CREATE TABLE other (id int PRIMARY KEY, a int)",
        "INSERT INTO other VALUES (1, 1)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        *(FULL.format(name) for name in ("stock", "notes", "other", "nothing")),
    )
    nights.first()
    nights.do(
        "UPDATE stock SET a = 20 WHERE id = 2",
        "ALTER TABLE stock ADD n int NOT NULL DEFAULT 7",
        "ALTER TABLE stock ALTER n SET DEFAULT 8",
        "ALTER TABLE stock RENAME b TO e",
        "UPDATE stock SET a = 30 WHERE id = 3",
        "INSERT INTO stock VALUES (4, 4, 'four', 'IV', 4)",
        "UPDATE other SET a = 2",
        "ALTER TABLE stock DROP d",
        "INSERT INTO notes VALUES ('z', 9)",
        "DELETE FROM notes WHERE text = 'b'",
        "ALTER TABLE notes DROP n",
        "DELETE FROM notes WHERE text = 'z'",
        "DELETE FROM notes WHERE ctid = (SELECT ctid FROM notes LIMIT 1)",
        "ALTER TABLE stock ADD d varchar(20)",
        "UPDATE stock SET d = 'new' WHERE id = 1",
        "ALTER TABLE nothing ADD n int",
        "GRANT SELECT ON other TO pg_monitor",
    )
    nights.rolled()
    nights.do(
        "ALTER TABLE stock ALTER c TYPE numeric(9, 2), ALTER c DROP NOT NULL, ALTER d TYPE text",
        "ALTER TABLE notes ADD m int DEFAULT 5",
    )
    nights.rolled()
    nights.do("INSERT INTO notes VALUES ('c', 5)", "UPDATE stock SET c = 1e6", "INSERT INTO nothing VALUES (1, 2)")
    nights.rolled()


@pytest.mark.long
def test_schema_changes_and_later_positions(
    postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """The oracle is the server's own rows. A schema change after the position does not matter, and a run that reads
    another table again carries the schema change to its later position."""
    nights = Nights(postgres_factory(None, ENDS[0]), spark, tmp_path)
    server = nights.server

    def published(run: Pipeline, columns: str) -> None:
        wanted = sorted(server.query(f"SELECT {columns} FROM stock"))
        nights.do(*after)
        folder = Path(run.finish()["published"]["public.stock"].removeprefix("file://"))
        assert sorted(tuple(row.values()) for row in pq.read_table(folder).to_pylist()) == wanted

    nights.do("CREATE TABLE stock (id int PRIMARY KEY, a int, b text)", FULL.format("stock"))
    nights.do("INSERT INTO stock VALUES (1, 1, 'I'), (2, 2, 'II')")
    nights.first()
    nights.do("UPDATE stock SET a = 5 WHERE id = 1", "ALTER TABLE stock DROP a, ADD n int DEFAULT 5")
    nights.do("UPDATE stock SET n = 6 WHERE id = 2", "INSERT INTO stock VALUES (3, 'III', 3)")
    run = nights.night()
    run.record()
    after = ["ALTER TABLE stock ADD late int DEFAULT 9", "UPDATE stock SET n = 0"]
    published(run, "*")
    nights.do("ALTER TABLE stock DROP b", "CREATE TABLE fresh (id int PRIMARY KEY)", FULL.format("fresh"))
    nights.do("INSERT INTO fresh VALUES (1)")
    run = nights.night("auto")
    run.record()
    nights.do("ALTER TABLE fresh ADD m int", "UPDATE stock SET late = 100", "INSERT INTO fresh VALUES (2, 2)")
    after = []
    published(run, "*")
    entries = Run.load(run.run).manifest.tables
    assert {entry.table.name.name: bool(entry.base) for entry in entries} == {"stock": True, "fresh": False}
    nights.rolled()
