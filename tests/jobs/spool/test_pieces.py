"""What a piece holds, and which histories of a server it survives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LogOptions
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import CdcError, LogGone, SchemaChanged
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.log.log import Piece
from airflow_provider_cdc.jobs.spool import why_not
from tests.conftest import MysqlFactory, PostgresFactory
from tests.consistency.postgres.test_disks_put_back import BEYOND, Disk
from tests.jobs.spool.spooled_run import Server, SpooledRun, make_tables, purge, rotate


@pytest.mark.slow
def test_pieces_have_both_images_so_they_roll_forward_to_each_of_their_boundaries(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    states = []
    for _ in range(3):
        run.change(10)
        assert spooler.take()
        states.append(dict(run.rows()["orders"].elements()))
    state = dict(run.expected["orders"].elements())
    back = dict(states[-1])
    for link, expected in zip(run.links(), states, strict=True):
        for change in changes_of(run, link.record):
            put(state, change["key"], change["after"])
        assert state == expected
    for link in reversed(run.links()):
        for change in changes_of(run, link.record):
            put(back, change["key"], change["before"])
    assert back == dict(run.expected["orders"].elements())


def put(state: dict[int, str], key: int, note: str | None) -> None:
    if note is None:
        state.pop(key, None)
    else:
        state[key] = note


def changes_of(run: SpooledRun, record: str) -> list[dict[str, Any]]:
    """The net change of ``shop.orders`` in a piece, with decoded rows."""
    opened = Run.load(run.pipeline.run)
    piece = records.read_named(Piece, opened.folder, record)
    names = [str(entry.table.name) for entry in opened.manifest.tables]
    table, index = opened.manifest.tables[names.index("shop.orders")].table, names.index("shop.orders")
    files = [file for segment in piece.segments for file in segment.files]
    changes = []
    for batch in net_change_files.read(
        Staging(opened.folder).folder,
        files,
        net_change_files.NET_SCHEMA.names,
        schema=net_change_files.NET_SCHEMA,
        table=index,
    ):
        rows: dict[str, list[Any]] = {}
        for side in ("before", "after"):
            there = batch[side].is_valid()
            decoded = iter(run.pipeline.source.decode_images(table, batch[side].drop_null()).to_pylist())
            rows[side] = [next(decoded) if one else None for one in there.to_pylist()]
        for before, after in zip(rows["before"], rows["after"], strict=True):
            row = before or after
            if row is not None:
                changes.append(
                    {"key": row["id"], "before": before and before["note"], "after": after and after["note"]}
                )
    return changes


@pytest.mark.slow
def test_a_crash_that_sets_the_slot_back_hands_out_nothing_twice(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_factory({"fsync": "on"})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    crashed = False

    def between() -> None:
        nonlocal crashed
        for _ in range(3):
            run.change(4)
            assert spooler.take()
        if not crashed:
            before = slot_of(server)
            server.crash()
            # The server wrote the slot's position to disk when the slot was created, and not since.
            assert slot_of(server) < before
            crashed = True

    run.between = between
    run.finish()
    assert crashed


def slot_of(server: Server) -> Lsn:
    ((position,),) = server.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary")
    return Lsn.parse(position)


@pytest.mark.slow
def test_a_server_that_has_lost_the_end_of_the_last_piece_is_refused(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was put back: all positions exist again, with other transactions."""
    server = postgres_factory()
    make_tables(server)
    run = SpooledRun(server, tmp_path / "lake", monkeypatch)
    assert run.spooler().take()
    disk = Disk(server, tmp_path)
    run.change()
    # A restart alone does no harm.
    assert run.spooler().take()
    disk.put_back()
    server.query(BEYOND)
    run.change()
    with pytest.raises(LogGone, match="no longer contains the mark"):
        run.spooler().take()
    run.pipeline.snapshot()
    with pytest.raises(LogGone, match="no longer contains the mark"):
        run.pipeline.extract_delta()


@pytest.mark.slow
def test_mysql_is_restarted_once_but_neither_twice_nor_after_a_crash(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    assert run.spooler().take()
    server.restart()
    run.change()
    assert run.spooler().take()
    assert run.links()[-1].restarts == 1
    purge(server)
    run.change()
    assert run.spooler().take()
    server.restart()
    run.change()
    with pytest.raises(CdcError, match="was started 2 times"):
        run.spooler().take()


@pytest.mark.slow
def test_mysql_tables_are_checked_although_the_log_of_harmless_statements_was_purged(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements that rebuild a table change its identity. The spool has explained them. An unlogged one is found."""
    server = mysql_factory({})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    assert spooler.take()
    server.query("OPTIMIZE TABLE shop.orders")
    rotate(server)
    run.change()
    assert spooler.take()
    purge(server)
    assert run.log_of_position_is_gone()
    server.query("ALTER TABLE shop.orders ADD INDEX (note(9))")
    tables = [entry.table for entry in run.manifest.tables]
    sources = spooler.lines[0].source, run.spooler().lines[0].source
    for source in sources:
        source.check_tables(tables)
    with server.connect(database="shop") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("TRUNCATE TABLE orders")
    for source in sources:
        with pytest.raises(SchemaChanged, match="TABLE_ID"):
            source.check_tables(tables)
    with pytest.raises(SchemaChanged, match="TABLE_ID"):
        spooler.take()


def test_runs_that_cannot_spool_say_why(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SpooledRun(server, tmp_path, monkeypatch)
    step = run.spooler()._step
    assert not why_not(step)
    manifest = step.manifest
    options = manifest.options
    step.run.manifest = replace(manifest, options=replace(options, log=LogOptions(spool="off")))
    assert "`Read.spool` is `off`" in why_not(step)
    step.run.manifest = replace(manifest, options=replace(options, keep_slot=True))
    assert "keep_slot" in why_not(step)
    step.run.manifest = replace(manifest, tables=tuple(replace(entry, at_upper=True) for entry in manifest.tables))
    assert "read again" in why_not(step)
