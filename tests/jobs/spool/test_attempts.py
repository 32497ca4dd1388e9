"""Attempts that are killed, that overlap, or that were presumed dead: the pieces of the log still join, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import FileDamaged, LogGone
from airflow_provider_cdc.jobs import spool as spooler_module
from airflow_provider_cdc.jobs.snapshot import step as snapshot_step
from airflow_provider_cdc.jobs.snapshot.read import stale_parts
from airflow_provider_cdc.jobs.snapshot.read_part import PartRecord
from airflow_provider_cdc.jobs.spool import Spooler
from airflow_provider_cdc.sources.api.window import UpperBound
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory
from tests.jobs.spool.spooled_run import Server, SpooledRun, make_tables, purge, rotate


class Killed(Exception):
    """Ends an attempt, as the end of its process does."""


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpooledRun:
    return SpooledRun(server, tmp_path, monkeypatch)


def spool(run: SpooledRun, spooler: Spooler) -> None:
    """Take a piece of some changes, and let the server remove all earlier log."""
    run.change(5)
    rotate(run.server)
    run.change(5)
    assert spooler.take()
    run.change(5)
    purge(run.server)


def killed_after(run: SpooledRun, spooler: Spooler, parts: int) -> None:
    """Execute the snapshot step, and end it after some parts."""
    left = iter(range(parts - 1))

    def between() -> None:
        spool(run, spooler)
        if next(left, None) is None:
            raise Killed

    run.between = between
    with pytest.raises(Killed):
        run.pipeline.snapshot()


@pytest.mark.slow
def test_the_next_attempt_goes_on_where_the_chain_of_a_killed_attempt_ends(run: SpooledRun) -> None:
    killed_after(run, run.spooler(), 2)
    chain = run.links()
    second = run.spooler()
    run.between = lambda: spool(run, second)
    run.pipeline.snapshot()
    links = run.links()
    assert links[:2] == chain
    assert len({link.token for link in links}) == 2
    assert [link.start for link in links[1:]] == [link.end for link in links[:-1]]
    run.finish()


@pytest.mark.slow
def test_a_piece_that_was_read_but_not_recorded_is_read_again(run: SpooledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt dies between the files of a piece and its link, so the source must still have this log."""
    first = run.spooler()
    assert first.take()

    def die(run: Run, line: str, link: Link) -> bool:
        raise Killed

    run.change()
    with monkeypatch.context() as patch:
        patch.setattr(Run, "take_piece", die)
        with pytest.raises(Killed):
            first.take()
    purge(run.server)
    second = run.spooler()
    run.between = lambda: spool(run, second)
    run.finish()


@pytest.mark.slow
def test_two_attempts_that_read_the_same_stretch_count_it_once(
    run: SpooledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, second = run.spooler(), run.spooler()
    take_piece = Run.take_piece

    def overtaken(run_: Run, line: str, link: Link) -> bool:
        # The zombie has read a piece. Before it records the piece, the other attempt reads and records one that is
        # longer.
        monkeypatch.setattr(Run, "take_piece", take_piece)
        run.change(5)
        assert second.take()
        return take_piece(run_, line, link)

    def between() -> None:
        run.change(5)
        rotate(run.server)
        monkeypatch.setattr(Run, "take_piece", overtaken)
        assert not zombie.take()
        run.change(5)
        purge(run.server)

    run.between = between
    run.finish()


@pytest.mark.slow
def test_log_that_another_attempt_has_recorded_is_not_missed(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harmless statement changes the identity of a table. Only the other attempt has seen the log that explains
    it, before the source removed this log."""
    server = mysql_factory({})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    acts: list[Callable[[], object]] = [run.spooler().take, lambda: server.query("OPTIMIZE TABLE shop.orders")]
    reads: list[int] = []

    def between() -> None:
        reads.append(len(run.read_parts))
        if acts:
            acts.pop(0)()
        else:
            spool(run, run.spooler())

    run.between = between
    run.finish()
    assert run.log_of_position_is_gone()
    assert {*reads} == {len(reads)}, "a part was read twice"


@pytest.mark.slow
def test_a_zombie_that_spools_beyond_the_end_of_the_reads_does_no_harm(
    run: SpooledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pieces are recorded between the end of the reads and the record of this end, and one too late."""
    zombie = run.spooler()
    run.between = lambda: spool(run, zombie)

    def beyond(done: Mapping[int, PartRecord], bound: UpperBound) -> list[int]:
        for _ in range(2):
            spool(run, zombie)
            assert run.pipeline.source.is_before(bound.log_end, run.links()[-1].end)
        return stale_parts(done, bound)

    monkeypatch.setattr(snapshot_step, "stale_parts", beyond)
    run.pipeline.snapshot()
    run.change()
    assert not zombie.take()
    # The zombie has looked at the run's records before the reads ended.
    links = run.links()
    with monkeypatch.context() as patch:
        patch.setattr(spooler_module, "SNAPSHOT", "not yet")
        zombie._closed.clear()
        assert not zombie.take()
    assert run.links() == links
    run.finish()


@pytest.mark.slow
def test_a_gap_behind_the_chain_is_refused(run: SpooledRun) -> None:
    spooler = run.spooler()
    assert spooler.take()
    run.change()
    server = run.server
    if isinstance(server, MysqlServer):
        rotate(server)
        purge(server)
    else:
        ((slot,),) = server.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ '^cdc_'")
        server.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,))
    run.change()
    with pytest.raises(LogGone):
        spooler.take()
    with pytest.raises(LogGone):
        run.pipeline.snapshot()


@pytest.mark.slow
def test_a_damaged_piece_is_refused_because_its_log_may_be_gone(run: SpooledRun) -> None:
    spooler = run.spooler()
    run.between = lambda: spool(run, spooler)
    run.pipeline.snapshot()
    damaged = next(name for name in run.pipeline.run.files("delta") if name.startswith("delta/spool-000001"))
    path = Path(run.pipeline.run.path(damaged))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(FileDamaged, match="the spooled log"):
        run.pipeline.extract_delta()


@pytest.mark.slow
def test_the_slot_follows_only_recorded_pieces(run: SpooledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    server = run.server
    if isinstance(server, MysqlServer):
        pytest.skip("MySQL has no slot")
    spooler = run.spooler()

    def slot() -> str:
        ((position,),) = server.query(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name ~ '^cdc_'"
        )
        return str(position)

    for _ in range(3):
        run.change(5)
        assert spooler.take()
    assert slot() == run.links()[-2].end.partition(" ")[0]
    monkeypatch.setattr(Run, "take_piece", lambda run, line, link: False)
    run.change(5)
    spooler.take()
    assert slot() == run.links()[-2].end.partition(" ")[0]
