"""A past reaches back to what altered a table last, and not only to the run that found it altered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.standing_record import alone, load, store
from tests.sources.postgres.standing import RUN_ID, Kept

WITHOUT_ROW_CHANGES = [
    "ALTER TABLE stock ALTER v SET NOT NULL",
    "ALTER TABLE optional ALTER v DROP NOT NULL",
    "ALTER TABLE stock ALTER v SET DEFAULT 3",
    "ALTER TABLE stock ALTER v SET STATISTICS 7",
    "ALTER TABLE stock ADD CHECK (v > -100)",
    "GRANT SELECT ON stock TO pg_monitor",
    "GRANT SELECT (v) ON stock TO pg_monitor",
    "ALTER TABLE stock RENAME v TO w; ALTER TABLE stock RENAME w TO v",
    "ALTER TABLE stock RENAME TO stocks; ALTER TABLE stocks RENAME TO stock",
    "ALTER TABLE stock REPLICA IDENTITY DEFAULT; ALTER TABLE stock REPLICA IDENTITY FULL",
]


@pytest.mark.slow
@pytest.mark.parametrize("ddl", WITHOUT_ROW_CHANGES)
def test_a_position_after_a_change_has_a_past_although_the_next_run_comes_later(kept: Kept, ddl: str) -> None:
    kept.run(
        "CREATE TABLE optional (id int PRIMARY KEY, v int NOT NULL); ALTER TABLE optional REPLICA IDENTITY FULL",
        "INSERT INTO optional VALUES (1, 1)",
    )
    table = "optional" if "optional" in ddl else "stock"
    kept.keep("stock", "optional")
    before = kept.here()
    # A checkpoint logs which transactions are running.
    kept.run(*ddl.split("; "), "CHECKPOINT")
    after, when = kept.here(), kept.clock()
    kept.run("UPDATE stock SET v = v + 1", "UPDATE optional SET v = v + 1")
    kept.keep("stock", "optional")
    joined = kept.record.tables[f"public.{table}"]
    assert "altered" in joined.why
    (problem,) = kept.refusals(before, table)
    assert f"covers the table only since {joined.position}" in problem.what
    kept.check(when, table)
    point = kept.record_at(after, table)
    kept.source.release(RUN_ID)
    (then,) = point.tables
    assert then.column("v").nullable == (ddl.endswith("NOT NULL") == ("DROP" in ddl))

    # A copy at that position can be rolled forward, and one from before it cannot.
    for start, rolls in ((after, True), (before, False)):
        kept.source.note_copies(kept.options, {"lake": {str(then.name): Lsn.parse(start)}}, "")
        refused = kept.source.refusals_since(point.identity, Lsn.parse(start), point.tables, None, kept.options)
        assert (refused == {}) == rolls
        assert all("the standing slot covers the table only since" in why for why in refused.values())
    # What an earlier version has on record says no more than it did.
    with session(kept.source.settings) as connection:
        alone(connection, kept.name, 10)
        record = kept.record
        tables = {name: replace(one, shape="", shape_position="", shape_at=0) for name, one in record.tables.items()}
        store(connection, kept.name, replace(record, tables=tables))
        assert load(connection, kept.name) is not None
    assert kept.refusals(after, table)


@pytest.mark.parametrize(
    "later",
    [
        "ALTER TABLE stock ALTER v SET DEFAULT 4",
        # Nothing but the row of the dropped column tells that the table had it at the position.
        "ALTER TABLE stock DROP extra",
        "ALTER TABLE stock RENAME TO stocks; ALTER TABLE stocks RENAME TO stock",
        "TRUNCATE stock",
    ],
)
def test_a_position_before_the_last_change_has_none(kept: Kept, later: str) -> None:
    kept.keep("stock")
    kept.run("ALTER TABLE stock ALTER v SET DEFAULT 3", "ALTER TABLE stock ADD extra int")
    point = kept.here()
    kept.run("ALTER TABLE stock DROP IF EXISTS extra" if "extra" not in later else "SELECT 1")
    point = kept.here() if "extra" not in later else point
    kept.run(*later.split("; "))
    kept.keep("stock")
    (problem,) = kept.refusals(point, "stock")
    assert "covers the table only since" in problem.what


ENUM = (
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE DOMAIN temper AS mood[]",
    "CREATE TABLE moods (id int PRIMARY KEY, m mood, t temper)",
    "ALTER TABLE moods REPLICA IDENTITY FULL",
)


@pytest.mark.parametrize("ddl", ["ALTER TYPE mood ADD VALUE 'x' BEFORE 'a'", "ALTER TYPE mood RENAME VALUE 'a' TO 'x'"])
def test_a_change_of_labels_ends_the_past(kept: Kept, ddl: str) -> None:
    """A transaction that is open at the position may have written the former name of a label into the log."""
    kept.run(*ENUM)
    kept.keep("moods")
    with kept.server.connect(database=kept.database, autocommit=False) as writer:
        writer.execute("INSERT INTO moods VALUES (1, 'a', '{a}')")
        kept.run(ddl, "CHECKPOINT")
        point = kept.here()
        writer.commit()
    kept.keep("moods")
    (problem,) = kept.refusals(point, "moods")
    assert "covers the table only since" in problem.what


def test_another_change_of_a_table_with_an_enum_does_not(kept: Kept) -> None:
    kept.run(*ENUM)
    kept.keep("moods")
    kept.run("ALTER TABLE moods ALTER m SET DEFAULT 'a'", "CHECKPOINT")
    point = kept.here()
    kept.keep("moods")
    kept.record_at(point, "moods")


def test_a_change_in_a_subtransaction(kept: Kept) -> None:
    kept.keep("stock")
    kept.run("BEGIN; SAVEPOINT s; ALTER TABLE stock ALTER v SET DEFAULT 3; RELEASE s; COMMIT", "CHECKPOINT")
    point = kept.here()
    kept.keep("stock")
    kept.record_at(point, "stock")


def test_a_change_that_may_have_ended_after_the_position(kept: Kept) -> None:
    """An older transaction is still open."""
    kept.keep("stock")
    with kept.server.connect(database=kept.database, autocommit=False) as older:
        older.execute("SELECT pg_current_xact_id()")
        kept.run("ALTER TABLE stock ALTER v SET DEFAULT 4", "CHECKPOINT")
        while_open = kept.here()
    kept.run("CHECKPOINT")
    later = kept.here()
    kept.keep("stock")
    assert kept.refusals(while_open, "stock")
    kept.check(later, "stock")


def test_the_slot_may_have_moved_on_beyond_the_change(kept: Kept) -> None:
    """The log before it is gone, and no slot tells that the transaction ended before the position."""
    kept.keep("stock")
    kept.run("ALTER TABLE stock ALTER v SET DEFAULT 3", "CHECKPOINT")
    point = kept.here()
    kept.keep("stock")
    kept.check(point, "stock")
    kept.run(f"SELECT pg_replication_slot_advance('{kept.name}', '{kept.here()}')")
    refusals = [problem.what for problem in kept.refusals(point, "stock")]
    assert any("lies before" in what or "does not exist" in what for what in refusals)
