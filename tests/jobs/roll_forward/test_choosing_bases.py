"""Which copies are rolled forward, and why others are not."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.removal import mark
from airflow_provider_cdc.core.options.run import BEGIN_ANEW, FeedOptions, StepOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import FeedGap, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import LogGone, PreflightError
from airflow_provider_cdc.jobs.begin.base_selection import choose
from airflow_provider_cdc.sinks.registry import open_sink
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, History, HistorySource, random_history

ORDERS, LINES = (TableName.parse(name) for name in NAMES[:2])
RUN = "20260101T000000Z-00000000"


def plans(unrepresentable: str = "error") -> list[TablePlan]:
    return [TablePlan(TableName.parse(name), "watermark", "", unrepresentable=unrepresentable) for name in NAMES]


class Refusing(HistorySource):
    refused: dict[TableName, str] | LogGone

    def refusals_since(
        self,
        identity: Any,
        position: Position,
        tables: Sequence[Table],
        to: Any,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        if isinstance(self.refused, LogGone):
            raise self.refused
        return {name: why for name, why in self.refused.items() if name in {table.name for table in tables}}


@pytest.fixture
def source() -> Refusing:

    source = Refusing(random_history(random.Random(1), 20), 1)
    source.refused = {}
    return source


@pytest.fixture
def lake(here: MakeRunner, source: Refusing) -> Runner:
    runner = here(source, 10)
    runner.all()
    return runner


def chosen(lake: Runner, source: Any, refresh: str = "auto", own: list[TablePlan] | None = None) -> list[TablePlan]:
    scratch = lake.run.parent().uri
    return choose(source, open_sink("parquet", lake.target), scratch, own or plans(), StepOptions(refresh=refresh))


def reasons(found: list[TablePlan]) -> dict[str, str]:
    return {str(plan.table): plan.reason for plan in found if not plan.base}


def test_every_copy_that_can_be_is_rolled_forward(lake: Runner, source: Refusing) -> None:
    assert {plan.base for plan in chosen(lake, source)} == {RUN}
    assert {plan.base for plan in chosen(lake, source, "changes")} == {RUN}
    assert {plan.base for plan in chosen(lake, source, "full")} == {""}


def test_what_the_source_refuses_is_read_in_full_or_stops_the_run(lake: Runner, source: Refusing) -> None:
    source.refused = {ORDERS: "TRUNCATE TABLE"}
    found = chosen(lake, source)
    assert set(reasons(found)) == {NAMES[0]}
    assert "read in full: TRUNCATE TABLE" in reasons(found)[NAMES[0]]
    with pytest.raises(PreflightError, match=r"shop\.orders: its copy cannot be rolled forward: TRUNCATE TABLE"):
        chosen(lake, source, "changes")
    source.refused = LogGone("the log was purged")
    assert set(reasons(chosen(lake, source))) == set(NAMES)
    with pytest.raises(PreflightError) as refused:
        chosen(lake, source, "changes")
    # One cause is one paragraph, however many tables it concerns.
    (problem,) = refused.value.problems
    assert problem.where == ", ".join(sorted(NAMES))


def test_feeds_end_at_copies_that_cannot_be_rolled_forward(lake: Runner, source: Refusing) -> None:
    """Also if the record of the copy is the reason. A table without a copy had no feed."""
    source.refused = {ORDERS: "TRUNCATE TABLE"}
    lake.target.delete_file(f"{NAMES[1]}/_latest.json")
    options = StepOptions(refresh="auto", changes=True, feeds=FeedOptions(BEGIN_ANEW))
    scratch, sink = lake.run.parent().uri, open_sink("parquet", lake.target)

    def gaps() -> dict[str, FeedGap]:
        found = choose(source, sink, scratch, plans(), options)
        return {str(plan.table): plan.feed_gap for plan in found if plan.feed_gap is not None}

    head = sink.latest(ORDERS)
    assert head is not None
    assert gaps() == {NAMES[0]: FeedGap(RUN, head.position, "TRUNCATE TABLE")}
    # Files of the copy are gone, and then its record is damaged.
    Path(Storage(head.path).path(head.files[0].rpartition("/")[2])).unlink()
    (gap,) = gaps().values()
    assert (gap.base, gap.start) == (RUN, head.position)
    lake.target.write_json(f"{NAMES[0]}/_latest.json", [])
    (gap,) = gaps().values()
    assert (gap.base, gap.start) == ("", "")
    assert "the last copy" in gap.described("here")


def test_a_table_without_a_copy(lake: Runner, source: Refusing) -> None:
    lake.target.delete_file(f"{NAMES[1]}/_latest.json")
    assert "there is no copy yet" in reasons(chosen(lake, source))[NAMES[1]]


def test_files_that_are_gone_or_cut_short(lake: Runner, source: Refusing) -> None:
    first, second = (Storage(lake.target.uri_of(f"{name}/snapshot={RUN}")) for name in NAMES[:2])
    Path(first.path(first.files()[0])).unlink()
    path = Path(second.path(second.files()[0]))
    path.write_bytes(path.read_bytes()[:-1])
    found = reasons(chosen(lake, source))
    assert set(found) == set(NAMES[:2])
    assert all(re.search("are missing or have other sizes|lacks 1 of its files", why) for why in found.values()), found


@pytest.mark.parametrize("at", [-5, -9])
def test_a_footer_that_is_damaged(lake: Runner, source: Refusing, at: int) -> None:
    folder = Storage(lake.target.uri_of(f"{NAMES[0]}/snapshot={RUN}"))
    path = Path(folder.path(folder.files()[0]))
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    found = reasons(chosen(lake, source))
    assert set(found) == {NAMES[0]}
    assert "is damaged: its checksum is" in found[NAMES[0]]


def test_a_copy_in_a_folder_that_was_being_removed(lake: Runner, source: Refusing) -> None:
    """The removal of a run's folder broke off, and the same DAG run was cleared, and published again."""
    mark(Run.load(lake.run), ORDERS, "a later run")
    found = reasons(chosen(lake, source))
    assert set(found) == {NAMES[0]}
    assert "was removed" in found[NAMES[0]]


def test_values_that_would_be_published_otherwise(lake: Runner, source: Refusing) -> None:
    found = reasons(chosen(lake, source, own=plans("string")))
    assert all("`On.unrepresentable` = `error`" in why for why in found.values())
    assert set(found) == set(NAMES)


def test_the_run_that_made_the_copy_is_gone(lake: Runner, source: Refusing) -> None:
    lake.run.parent().delete_folder(RUN)
    assert all("there is no manifest" in why for why in reasons(chosen(lake, source)).values())
    assert len(reasons(chosen(lake, source))) == len(NAMES)


def test_a_source_that_cannot(lake: Runner) -> None:
    source = HistorySource(History(), 0)
    assert set(reasons(chosen(lake, source))) == set(NAMES)
    with pytest.raises(PreflightError, match="cannot be rolled forward yet"):
        chosen(lake, source, "changes")
