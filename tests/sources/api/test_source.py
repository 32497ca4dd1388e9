"""A default of `Source` hides no method that a kind of database must have, and never passes for what it cannot do."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import parse
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.tables.table import Era
from airflow_provider_cdc.errors import ConfigurationError, SchemaChanged
from airflow_provider_cdc.sources.api.registry import KINDS, SourceKind
from airflow_provider_cdc.sources.api.source import Source
from tests.jobs.history_source import History, HistorySource, at, tables

IN_BOTH = """
    after_failover backlog carry_read check_continued check_joined check_past check_server check_since close_idle
    comparable_texts ends_of_reads has_reached is_before is_within key_range load load_signals needed_log new_columns
    place_of pushed_condition record_past reason_not_rollable refusals_since relations take_over tables_of waiting
"""
ONLY = {
    # The log has statements, prepared transactions and the names of tables, and the server has no objects for runs.
    "mysql": """
        altered_in_log check_replaced check_writes incarnation_at key_order note_tables prepared_now
        refresh_identities segments_before with_facts_of
    """,
    # The server keeps slots and publications for runs, sessions share snapshots, and columns have numbers.
    "postgres": """
        acknowledge bound_view carries_pieces carry_images column_identities discard drop_unused follow give_up_past
        keep_past keep_window kept_objects key_reader left_by_runs note_copies note_position release share_reads
        wait_until_visible
    """,
}
TABLE = tables()[0]
PLACE = LogEnd("1")
NO_FACTS = Facts({})
PAST = parse("2026-01-01T00:00:00Z")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_overrides_the_defaults_for_what_its_databases_have(kind: SourceKind) -> None:
    source = kind.load(kind.source)
    names = {name for name in dir(Source) if not name.startswith("_")} - Source.__abstractmethods__
    overridden = {name for name in names if getattr(source, name, None) is not getattr(Source, name, None)}
    assert overridden == {*IN_BOTH.split(), *ONLY[kind.name].split()}
    assert not source.__abstractmethods__


@pytest.mark.parametrize(
    "call",
    [
        lambda source: source.check_past(PAST, [], StepOptions()),
        lambda source: source.record_past(PAST, [], StepOptions()),
        lambda source: source.has_reached(PAST),
        lambda source: Source.check_since(source, NO_FACTS, at(0)),
        lambda source: source.tables_of([]),
        lambda source: source.load(["threads_running"]),
        lambda source: source.bound_view([]),
        lambda source: source.follow(at(0), NO_FACTS, []),
        lambda source: source.check_continued([]),
        lambda source: source.new_columns(TABLE, Era((), "", "", "", ())),
        lambda source: source.check_writes([]),
        lambda source: source.carry_images(TABLE, (), None),
        lambda source: source.check_joined(PLACE, PLACE, at(0), NO_FACTS),
        lambda source: source.is_before(PLACE, PLACE),
        lambda source: source.is_within("1", at(0)),
        lambda source: source.carry_read(NO_FACTS, at(0), TABLE, TABLE, PLACE, at(1)),
    ],
)
def test_what_a_database_cannot_do_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises((ConfigurationError, SchemaChanged)):
        call(HistorySource(History(), 0))


def test_what_a_database_lacks_is_named_where_the_run_can_go_on_without_it() -> None:
    source = HistorySource(History(), 0)
    assert source.reason_not_rollable(TABLE)
    assert source.waiting(at(0), NO_FACTS, PLACE).obstacle
    assert source.refusals_since(NO_FACTS, at(0), [TABLE], None, StepOptions()).keys() == {TABLE.name}


def test_a_database_without_objects_for_runs_has_nothing_to_release_or_to_find() -> None:
    source = HistorySource(History(), 0)
    assert not source.release("20260101T000000Z-00000000")
    source.discard(NO_FACTS)
    assert source.left_by_runs() == []
    assert source.kept_objects([]) == []
    with source.shared_reads({"exported"}, LockPolicy()) as shared:
        assert shared is source
    assert pickle.loads(pickle.dumps(source)).seed == source.seed
