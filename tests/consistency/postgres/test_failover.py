"""Nights on a pair of servers: a standby takes over, and the copies go on, or are read anew with the reason.

After each takeover, the new primary writes more log than the old one had, so that all positions of the old primary have
been given again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import CdcError, LogGone, PreflightError, SchemaChanged, SourceReplaced
from harness.pipeline import Pipeline
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.throw_away import throw_away
from tests.consistency.failovers import OPTIONS, History
from tests.consistency.postgres.nights import FULL, Nights
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.seeds import chain_length, seeds
from tests.soon import soon

SYNCHRONIZE_SINCE = 17
SHARED = {"public.stock", "public.visits"}


class Pair:
    """A primary with nights, and a standby."""

    def __init__(self, primary: PostgresServer, spark: SparkSession, folder: Path, directory: Path) -> None:
        self.primary = primary
        self.nights = Nights(primary, spark, folder)
        options = {
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
            "primary_conninfo": f"host={primary.host} port={primary.port} user={SUPERUSER} dbname=postgres",
            "wal_retrieve_retry_interval": "100ms",
            **({"sync_replication_slots": "on"} if primary.binaries.major >= SYNCHRONIZE_SINCE else {}),
        }
        primary.query("SELECT pg_create_physical_replication_slot('standby', true)")
        self.standby = primary.standby(directory, options)
        self.nights.do(
            "CREATE TABLE stock (id int PRIMARY KEY, note text)",
            "CREATE TABLE visits (id int, note text)",
            *(FULL.format(name) for name in ("stock", "visits")),
            *(f"INSERT INTO {name} SELECT i, 'first' FROM generate_series(1, 500) i" for name in ("stock", "visits")),
        )

    def write(self, note: str) -> None:
        self.nights.do(
            f"UPDATE stock SET note = '{note}' WHERE id % 7 = 0",
            f"UPDATE visits SET note = '{note}' WHERE id % 7 = 1",
            "DELETE FROM stock WHERE id % 13 = 0",
            f"INSERT INTO stock SELECT max(id) + 13, '{note}' FROM stock",
            f"INSERT INTO visits VALUES (1, '{note}'), (1, '{note}')",
        )

    def caught_up(self) -> None:
        """Wait until the standby has replayed all of the primary's log."""
        end = self.primary.query("SELECT pg_current_wal_flush_lsn()")[0][0]
        soon(lambda: self.standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)), [(True,)])

    def synchronize(self) -> None:
        """Wait until the standby has the slot, which it keeps only after the primary has advanced it twice."""
        name = "SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ 'standing'"
        soon(lambda: self.standby.query(name), self.primary.query(name))
        for number in range(2):
            self.write(f"night {number}")
            # The server logs which transactions run.
            self.nights.do("CHECKPOINT")
            self.next_night(forward=True)
        self.caught_up()
        sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name ~ 'standing' AND NOT temporary"
        soon(lambda: self.standby.query(sql), self.primary.query(sql))

    def take_over(self) -> None:
        """Stop the primary for good, and promote the standby with the log that it has."""
        end = self.primary.query("SELECT pg_current_wal_flush_lsn()")[0][0]
        self.primary.kill()
        if self.standby.query("SELECT pg_is_in_recovery()") == [(True,)]:
            self.standby.query("SELECT pg_promote()")
        self.nights.server = self.primary = self.standby
        # Positions of the old primary are given again.
        while self.standby.query("SELECT pg_current_wal_flush_lsn() <= %s::pg_lsn", (end,)) == [(True,)]:
            self.standby.query("SELECT pg_switch_wal()")
            self.write("given again")

    def night(self) -> Pipeline:
        """The next run. The standing slot keeps no more log than the last copies need, as if days had passed."""
        return self.nights.night("auto", standing_slot_hours=0)

    def first(self) -> None:
        self.next_night(forward=False)

    def next_night(self, *, forward: bool) -> Pipeline:
        """Make a night, and compare with a full copy. Return its run."""
        run = self.night()
        run.record()
        based = {str(plan.table) for plan in run.plans if plan.base}
        assert based == (SHARED if forward else set()), [plan.reason for plan in run.plans]
        self.nights.check(run.finish()["published"])
        return run


@contextmanager
def pair_of(version: int, spark: SparkSession, folder: Path, **options: str) -> Iterator[Pair]:
    with primary_of(version, **options) as primary, throw_away("cdc-standby-") as directory:
        pair = Pair(primary, spark, folder, directory)
        with pair.standby:
            yield pair


PAIRS = [
    pytest.param(one, marks=pytest.mark.slow if one == VERSIONS[-1] else pytest.mark.long)
    for one in VERSIONS
    if one >= SYNCHRONIZE_SINCE
]


@pytest.mark.slow
@pytest.mark.parametrize("version", PAIRS)
def test_a_planned_switch_keeps_the_nights_going(version: int, spark: SparkSession, tmp_path: Path) -> None:
    with pair_of(version, spark, tmp_path) as pair:
        pair.first()
        pair.synchronize()
        pair.write("before the switch")
        pair.caught_up()
        pair.take_over()
        pair.next_night(forward=True)
        pair.write("after the switch")
        pair.next_night(forward=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", PAIRS)
@pytest.mark.parametrize("lost", ["the whole night", "all since its position"])
def test_a_lost_tail(lost: str, version: int, spark: SparkSession, tmp_path: Path) -> None:
    with pair_of(version, spark, tmp_path) as pair:
        pair.first()
        pair.synchronize()
        if lost == "the whole night":
            pair.standby.stop()
        pair.write("the last night")
        run = pair.night()
        run.record()
        if lost != "the whole night":
            pair.caught_up()
            pair.standby.stop()
        pair.write("lost")
        run.finish()
        pair.write("lost, too")
        # It no longer reaches the primary.
        pair.standby.restart({"primary_conninfo": ""})
        late = pair.night()
        late.record()
        pair.take_over()
        # The position of this run was lost.
        pair.nights.number -= 1
        again = pair.night()
        again.plans = late.plans
        with pytest.raises(SourceReplaced, match=r"a standby took over at .*, before the position"):
            again.lock_and_record()
        # The copy is exact at the position of its run. If the new primary has this position, the copy belongs to it.
        pair.next_night(forward=lost != "the whole night")
        pair.write("after the failover")
        pair.next_night(forward=True)


@pytest.mark.slow
def test_without_the_slot_the_tables_are_read_anew_and_the_log_says_what_would_help(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pair_of(VERSIONS[0], spark, tmp_path) as pair:
        pair.first()
        pair.caught_up()
        pair.take_over()
        with caplog.at_level(logging.WARNING):
            pair.next_night(forward=False)
        assert "a standby took over that did not have the slot" in caplog.text
        assert "sync_replication_slots" in caplog.text
        pair.next_night(forward=True)


@pytest.mark.slow
def test_a_switch_in_mid_run(spark: SparkSession, tmp_path: Path) -> None:
    """The run refuses to read two servers. When it is cleared, it begins again on the new one."""
    with pair_of(VERSIONS[-1], spark, tmp_path) as pair:
        pair.first()
        pair.synchronize()
        pair.write("before the run")
        run = pair.night()
        run.record()
        pair.write("in the run")
        run.snapshot()
        pair.caught_up()
        plans = run.plans
        pair.nights.server = pair.standby
        pair.nights.number -= 1
        run = pair.night()
        run.plans = plans
        with pytest.raises(SourceReplaced, match="reaches a standby"):
            run.lock_and_record()
        pair.take_over()
        with pytest.raises(SourceReplaced, match="timeline was 1, here it is 2"):
            run.extract_delta()
        # The task `preflight` is not cleared, so only this task records that the standby has taken over.
        run.lock_and_record()
        assert {bool(plan.base) for plan in plans} == {True}
        pair.nights.check(run.finish()["published"])
        pair.write("after the run")
        pair.next_night(forward=True)


@pytest.mark.slow
def test_a_time_in_the_past_on_the_server_that_took_over(spark: SparkSession, tmp_path: Path) -> None:
    """The position of the time is looked up before the task has found that a standby took over."""
    with pair_of(VERSIONS[-1], spark, tmp_path) as pair:
        pair.first()
        pair.synchronize()
        pair.write("before the switch")
        pair.caught_up()
        pair.take_over()
        pair.write("given again")
        ((time,),) = pair.primary.query(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.USZ')"
        )
        run = pair.nights.night("auto", standing_slot_hours=0, as_of=time)
        run.record()
        assert {bool(plan.base) for plan in run.plans} == {True}, [plan.reason for plan in run.plans]
        pair.nights.check(run.finish()["published"])
        pair.write("after the switch")
        pair.next_night(forward=True)


class Promoted:
    """A pair whose standby may take over."""

    schema = "public"
    refusals: tuple[type[CdcError], ...] = (SourceReplaced, LogGone, PreflightError, SchemaChanged)
    # Only with a slot that was synchronized.
    goes_on = False

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def do(self, *statements: str) -> None:
        self.pair.nights.do(*statements)

    def write(self, note: str) -> None:
        self.pair.write(note)

    def select(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        return list(self.pair.primary.query(f"SELECT {', '.join(columns)} FROM {table}"))

    def begin(self, *, again: bool) -> Pipeline:
        self.pair.nights.number -= again
        return self.pair.nights.night("auto", standing_slot_hours=0, **OPTIONS)

    def has_standby(self) -> bool:
        return self.pair.primary is not self.pair.standby

    def cut_off(self) -> None:
        self.pair.standby.restart({"primary_conninfo": ""})

    def promote(self, *, lost: bool, again: bool) -> None:
        if not lost:
            self.pair.caught_up()
        self.pair.take_over()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds())
def test_random_nights_with_a_failover(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    with pair_of(VERSIONS[-1 - seed % 2], spark, tmp_path) as pair:
        if seed % 4 < 2 and pair.primary.binaries.major >= SYNCHRONIZE_SINCE:
            pair.first()
            pair.synchronize()
        history = History(Promoted(pair), seed)
        for _ in range(chain_length(2) + 1):
            history.night()
