"""The initial position has all earlier commits, all later commits are in the log, and the log of another server is
rejected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError, LogGone, SchemaChanged, SourceReplaced, TerminalError
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import AT_START, Start
from tests.contract.begun import LOCK, RUN_ID, Begin, Begun, written
from tests.contract.databases import Database

COLUMNS = "id INT PRIMARY KEY, note VARCHAR(20)"


@pytest.fixture
def stock(db: Database) -> Database:
    db.create("stock", COLUMNS)
    db.create("visits", "a INT")
    db.insert("stock", [(number, "old") for number in range(5)])
    return db


def keys(*numbers: int) -> set[bytes]:
    """The key of an INT column, by the specification of ``core.row_bytes``."""
    return {b"\x01" + number.to_bytes(4, "little", signed=True) for number in numbers}


def test_the_point_is_plain_data_that_a_manifest_can_hold(stock: Database) -> None:
    source = open_source(stock.settings)
    patterns = [str(stock.name("visits")), str(stock.name("stock"))]
    plans = source.preflight(patterns)[::-1]
    point = source.record_initial(plans, LOCK, RUN_ID)
    try:
        # Jobs pair plans and tables by their place.
        assert [table.name for table in point.tables] == [plan.table for plan in plans]
        assert [table.key for table in point.tables] == [(), ("id",)]
        assert stock.parse(str(point.position)) == point.position
        recorded = decode(Facts, written(encode(point.identity)), "")
        assert recorded == point.identity
        assert decode(tuple[Table, ...], written(encode(point.tables)), "") == point.tables
        assert 0 <= point.lock_seconds < 60
        source.check_identity(recorded, point.position)
    finally:
        source.release(RUN_ID)
    stock.wait_for_no_session()


def test_what_was_committed_before_it_is_not_in_the_window_and_all_after_it_is(stock: Database, begin: Begin) -> None:
    stock.execute("UPDATE stock SET note = 'before' WHERE id = 1", "INSERT INTO stock VALUES (7, 'before')")
    stock.execute("INSERT INTO visits VALUES (1)")
    run = begin("stock", "visits")
    stock.execute("UPDATE stock SET note = 'after' WHERE id = 2", "INSERT INTO stock VALUES (8, 'after')")
    stock.execute("INSERT INTO visits VALUES (2), (2)")
    window = run.window()
    assert window.before["stock"].keys() == keys(2, 8)
    assert list(window.counts["visits"].values()) == [2]


def test_a_transaction_that_began_before_it_and_commits_after_it_is_in_the_window(
    stock: Database, begin: Begin
) -> None:
    with stock.connect() as early, early.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT COUNT(*) FROM stock")
        run = begin("stock")
        cursor.execute("UPDATE stock SET note = 'late' WHERE id = 3")
        meanwhile = run.log_end()
        cursor.execute("COMMIT")
    assert run.window_to(meanwhile, run.position).before["stock"] == {}
    assert run.window().before["stock"].keys() == keys(3)


def test_recording_again_moves_the_position_and_leaves_one_of_everything(stock: Database, begin: Begin) -> None:
    first = begin("stock")
    kept = stock.kept()
    stock.execute("DELETE FROM stock WHERE id = 1")
    again = begin("stock")
    stock.execute("DELETE FROM stock WHERE id = 2")
    assert len(stock.kept()) == len(kept)
    assert again.position != first.position
    assert again.window().before["stock"].keys() == keys(2)


def test_runs_do_not_disturb_each_other(stock: Database, begin: Begin) -> None:
    first, second = begin("stock"), begin("stock", run_id="20260101T000000Z-11111111")
    stock.execute("DELETE FROM stock WHERE id = 1")
    second.window()
    second.release()
    assert first.window().before["stock"].keys() == keys(1)


def test_nothing_of_a_run_is_left_once_it_is_released_however_often(stock: Database) -> None:
    before = stock.kept()
    run = Begun(stock, "stock", "visits")
    run.read_all()
    for _ in range(3):
        run.release()
        assert stock.kept() == before == []
    stock.wait_for_no_session()


@pytest.mark.parametrize("change", ["DROP TABLE stock", "ALTER TABLE stock DROP COLUMN id"])
def test_a_table_that_is_not_what_was_planned_is_refused_and_leaves_nothing(stock: Database, change: str) -> None:
    source = open_source(stock.settings)
    plans = source.preflight([str(stock.name("stock"))])
    stock.execute(change)
    with pytest.raises(SchemaChanged) as refused:
        source.record_initial(plans, LOCK, RUN_ID)
    assert "stock" in str(refused.value)
    assert stock.kept() == []
    stock.wait_for_no_session()


def test_a_bound_covers_what_was_committed_and_nothing_that_comes_later(stock: Database, begin: Begin) -> None:
    run = begin("stock", "visits")
    for number in range(3):
        stock.execute(f"DELETE FROM stock WHERE id = {number}", f"INSERT INTO visits VALUES ({number})")
        bound = run.source.bound_reads()
        assert stock.parse(str(bound.upper)) == bound.upper
        stock.execute(f"INSERT INTO stock VALUES ({number + 100}, 'later')", "INSERT INTO visits VALUES (99)")
        window = run.window_to(bound.log_end, bound.upper)
        later = set(range(100, 100 + number))
        assert window.before["stock"].keys() == keys(*range(number + 1), *later)
        assert sum(window.counts["visits"].values()) == 2 * number + 1


class TestAnotherServerOrAnotherLog:
    @pytest.fixture
    def away(self, second_server: Database) -> Iterator[Begun]:
        """A run on the second server."""
        second_server.create("stock", COLUMNS)
        second_server.insert("stock", [(1, "old")])
        run = Begun(second_server, "stock")
        yield run
        run.release()
        second_server.execute("DROP TABLE stock")

    @pytest.mark.slow
    def test_of_another_server_stops_the_run(self, stock: Database, begin: Begin, away: Begun) -> None:
        here = begin("stock")
        here.source.check_identity(here.identity, here.position)
        away.source.check_identity(away.identity, away.position)
        for source, other in ((here.source, away), (away.source, here)):
            with pytest.raises(SourceReplaced) as refused:
                source.check_identity(other.identity, other.position)
            assert isinstance(refused.value, ExactnessError)
            assert refused.value.where
            assert refused.value.hint

    def test_that_is_gone_stops_the_run(self, second_server: Database, away: Begun) -> None:
        second_server.execute("UPDATE stock SET note = 'lost' WHERE id = 1")
        end = away.log_end()
        (segment, *_) = away.source.segments(Start(away.position, away.identity), AT_START, end)
        second_server.lose_log()
        with pytest.raises(LogGone) as refused:
            away.source.check_identity(away.identity, away.position)
        assert isinstance(refused.value, TerminalError)
        assert refused.value.hint
        with pytest.raises(LogGone):
            away.source.segments(Start(away.position, away.identity), AT_START, end)
        with pytest.raises(LogGone), away.source.read_segment(segment, away.position, []) as reader:
            list(reader)
