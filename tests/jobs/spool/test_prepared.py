"""MySQL: transactions that are prepared in one piece of the log, or before all pieces, and decided in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.errors import ExactnessError, ImageNotWhole
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory
from tests.jobs.spool.spooled_run import SpooledRun, make_tables, purge, rotate


@pytest.fixture
def server(mysql_factory: MysqlFactory) -> MysqlServer:
    server = mysql_factory({})
    make_tables(server)
    return server


def prepare(server: MysqlServer, name: str, *statements: str) -> None:
    """Prepare a transaction, and end its session."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (f"XA START '{name}'", *statements, f"XA END '{name}'", f"XA PREPARE '{name}'"):
            cursor.execute(statement)


def order(number: int) -> str:
    """A change of the first and of the last part that no other transaction of the test blocks."""
    return f"INSERT INTO shop.orders VALUES ({-1 - number}, 'xa'), ({10**10 + number}, 'xa')"


@pytest.mark.slow
def test_rows_of_a_prepare_are_kept_across_pieces(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    taken = iter(range(100))

    def between() -> None:
        """Each transaction is prepared in one piece, and ended one or two pieces later."""
        number = next(taken)
        rotate(server)
        for last in (number - 1, number - 2):
            if last >= 0:
                server.query(f"XA {'ROLLBACK' if last % 3 == 2 else 'COMMIT'} 'c{last}_{number - last}'")
        prepare(server, f"c{number}_1", order(2 * number))
        prepare(server, f"c{number}_2", order(2 * number + 1))
        run.change(2, keyed=True)
        assert spooler.take()
        purge(server)

    run.between = between
    run.finish()


@pytest.mark.slow
@pytest.mark.parametrize("committed", ["early", "partial"])
def test_earlier_changes_that_cannot_be_used_stop_a_run_only_if_they_count(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: str
) -> None:
    """Their file is read because of another transaction. One transaction ended, in a later file, before its table was
    altered."""
    prepare(server, "early", "INSERT INTO shop.orders VALUES (-1, 'xa')")
    prepare(server, "ended", "INSERT INTO shop.events VALUES (-1, 'xa')")
    server.query("SET GLOBAL binlog_row_image = MINIMAL")
    prepare(server, "partial", "UPDATE shop.orders SET note = 'xa' WHERE id = 1")
    server.query("SET GLOBAL binlog_row_image = FULL")
    rotate(server)
    server.query("XA COMMIT 'ended'")
    server.query("ALTER TABLE shop.events ADD COLUMN c INT")
    rotate(server)
    run = SpooledRun(server, tmp_path, monkeypatch, on_schema_change="fail")
    server.query(f"XA COMMIT '{committed}'")
    if committed == "early":
        run.finish()
    else:
        with pytest.raises(ImageNotWhole):
            run.finish()
    server.query(f"XA ROLLBACK '{'partial' if committed == 'early' else 'early'}'")


@pytest.mark.slow
@pytest.mark.parametrize("commit_in", ["first piece", "second piece", "rest"])
def test_what_was_prepared_before_the_run_is_looked_up_before_its_log_is_purged(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_in: str
) -> None:
    prepare(server, "early", order(1))
    rotate(server)
    rotate(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    if commit_in == "first piece":
        server.query("XA COMMIT 'early'")
    run.change(keyed=True)
    assert spooler.take()
    rotate(server)
    run.change(keyed=True)
    if commit_in == "second piece":
        server.query("XA COMMIT 'early'")
    assert spooler.take()
    purge(server)
    if commit_in == "rest":
        server.query("XA COMMIT 'early'")
    run.finish()


@pytest.mark.slow
def test_a_commit_whose_rows_were_purged_before_the_first_piece_is_refused(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(server, "early", order(1))
    rotate(server)
    purge(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    server.query("XA COMMIT 'early'")
    assert spooler.take()
    run.pipeline.snapshot()
    with pytest.raises(ExactnessError, match="no longer contains its XA PREPARE"):
        run.pipeline.extract_delta()


@pytest.mark.slow
def test_a_prepared_transaction_that_never_ends_counts_nowhere(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    prepare(server, "open", order(1))

    def between() -> None:
        run.change(2, keyed=True)
        assert spooler.take()

    run.between = between
    run.finish()
    server.query("XA ROLLBACK 'open'")


@pytest.mark.slow
def test_a_keyless_table_counts_a_prepared_transaction_by_the_place_of_its_commit(
    server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    row = "INSERT INTO shop.events VALUES (77, 'xa')"
    for name, end in (("a", "COMMIT"), ("b", "ROLLBACK")):
        prepare(server, name, row)
        assert spooler.take()
        server.query(f"XA {end} '{name}'")
        rotate(server)
    assert spooler.take()
    purge(server)
    read_parts = iter(range(100))

    def between() -> None:
        if next(read_parts) == len(run.read_parts) - 1:
            # All parts are read, so the lock on the table is released, and these changes come after its position.
            prepare(server, "c", row)
            assert spooler.take()
            server.query("XA COMMIT 'c'")
            assert spooler.take()
            prepare(server, "d", row)
            assert spooler.take()
            server.query("XA COMMIT 'd'")

    run.between = between
    run.finish()
