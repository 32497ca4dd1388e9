"""Past positions: which position a time means, and every reason why a copy cannot be exact there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Lsn, Position
from airflow_provider_cdc.errors import CdcError, LockNotGranted, PreflightError, SourceUnavailable
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.planning.survey import survey, survey_past
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import commits, slots
from airflow_provider_cdc.sources.postgres.slots.commits import prefix_at, remember
from airflow_provider_cdc.sources.postgres.slots.standing_record import format_micros, store
from airflow_provider_cdc.sources.postgres.steps import past
from tests.conftest import PostgresFactory
from tests.sources.postgres.backends import background, wait_for
from tests.sources.postgres.standing import RUN_ID, Kept


@pytest.fixture
def crashing(postgres_factory: PostgresFactory) -> Iterator[Kept]:
    found = Kept(postgres_factory({"fsync": "on"}), "postgres")
    found.run("CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL")
    yield found
    found.forget()


class _Commits:
    """Commits with times of one's own, which count from now."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._base = kept.clock()
        self._before: list[Lsn] = []
        self._name = f"test_{kept.database}"
        kept.run(f"SELECT pg_replication_origin_create('{self._name}')")

    def end(self) -> None:
        self._kept.run(f"SELECT pg_replication_origin_drop('{self._name}')")

    def make(self, seconds: int, sql: str = "UPDATE stock SET v = v + 1") -> None:
        with self._kept.server.connect(database=self._kept.database) as connection:
            connection.execute("SELECT pg_replication_origin_session_setup(%s)", (self._name,))
            with connection.transaction():
                # The server analyzes tables itself: none of its commits comes between the position and this one.
                connection.execute("LOCK TABLE pg_statistic, pg_class IN SHARE ROW EXCLUSIVE MODE")
                self._before.append(Lsn.parse(self._kept.here_quietly()))
                when = self._base + timedelta(seconds=seconds)
                connection.execute("SELECT pg_replication_origin_xact_setup('0/1', %s)", (when,))
                connection.execute(sql)
            # The server's process ends a moment after its connection, and holds the origin until then.
            connection.execute("SELECT pg_replication_origin_session_reset()")

    def up_to(self, seconds: int) -> int:
        """How many of them belong to a time."""
        micros = round((self._base + timedelta(seconds=seconds)).timestamp() * 1_000_000)
        kept, record = self._kept, self._kept.record
        found = prefix_at(kept.source.settings, kept.name, record.marks, record.joins, micros)
        assert found is not None
        return sum(before < found.position for before in self._before)


@pytest.fixture
def commits_at(kept: Kept) -> Iterator[_Commits]:
    found = _Commits(kept)
    yield found
    found.end()


@pytest.mark.slow
def test_a_time_means_all_that_was_committed_up_to_it_and_nothing_later(kept: Kept) -> None:
    kept.keep("stock")
    kept.run("UPDATE stock SET v = 1")
    # In this order, because the server itself commits something periodically.
    between = kept.clock()
    first = Lsn.parse(kept.here())
    kept.run("UPDATE stock SET v = 2")
    position = Lsn.parse(kept.position_of(between, "stock"))
    assert position <= first
    # It is always the same, from whichever mark the search starts.
    for _ in range(2):
        kept.run("UPDATE stock SET v = 3")
        assert kept.position_of(between, "stock") == str(position)
    assert len(kept.record.marks) == 2


def test_a_time_after_which_nothing_was_committed_is_made_final(kept: Kept, commits_at: _Commits) -> None:
    kept.keep("stock")
    kept.run("UPDATE stock SET v = 1")
    now, end = kept.clock(), kept.here_quietly()
    assert (found := Lsn.parse(kept.position_of(now, "stock"))) <= Lsn.parse(end)
    # What is committed next may still have an earlier time.
    commits_at.make(-60)
    assert kept.position_of(now, "stock") == str(found)


def test_what_is_committed_while_a_time_is_resolved_does_not_change_what_it_means(
    kept: Kept, commits_at: _Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have an earlier time: so a later commit has to be in the log before anybody goes by what was found."""
    kept.keep("stock")
    kept.run("UPDATE stock SET v = 1")
    now = kept.clock()

    def remembering(*arguments: Any) -> None:
        commits_at.make(-60)
        remember(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(past, "remember", remembering)
        found = kept.position_of(now, "stock")
    assert kept.position_of(now, "stock") == found


def test_the_first_later_commit_ends_a_time_though_an_earlier_one_follows(kept: Kept, commits_at: _Commits) -> None:
    """Commit times need not grow along the log: here they come from elsewhere, as with logical replication."""
    kept.keep("stock")
    for seconds in (100, 300, 200):
        commits_at.make(seconds)
    assert [commits_at.up_to(seconds) for seconds in (50, 100, 250, 299, 300)] == [0, 1, 1, 1, 3]


def test_a_later_commit_ends_a_time_although_tables_joined_before_that_time(kept: Kept, commits_at: _Commits) -> None:
    """By the server's clock they did; but what another server committed later by its own clock was there already."""
    kept.keep("stock")
    commits_at.make(1000)
    kept.run("CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL")
    kept.keep("stock", "other")
    assert len(kept.record.joins) == 2
    assert [commits_at.up_to(seconds) for seconds in (500, 1500)] == [0, 1]


def test_only_commits_that_touch_a_published_table_or_write_a_message_count(kept: Kept, commits_at: _Commits) -> None:
    """The other ones change no row of a copy, so a time means the same rows with and without them."""
    kept.run("CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL; CREATE TABLE elsewhere (v int)")
    kept.keep("stock", "other")
    for seconds, sql in (
        (100, "UPDATE stock SET v = v + 1"),
        (900, "INSERT INTO elsewhere VALUES (1)"),
        (200, "INSERT INTO other VALUES (1)"),
        (500, "SELECT pg_logical_emit_message(true, 'application', 'text')"),
        (300, "TRUNCATE other"),
    ):
        commits_at.make(seconds, sql)
    assert [commits_at.up_to(seconds) for seconds in (100, 200, 400, 500)] == [1, 3, 3, 5]


@pytest.mark.slow
def test_a_time_within_a_join_is_the_same_before_and_after_a_later_one_was_resolved(kept: Kept) -> None:
    kept.keep("stock")
    kept.server.query("CREATE TABLE IF NOT EXISTS elsewhere (v int)")
    kept.run("CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL")
    with kept.server.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        # Nothing is committed in this database between the end of the log and the point at which the table joins.
        writer.execute("INSERT INTO elsewhere VALUES (1)")
        joining = pool.submit(kept.keep, "stock", "other")
        wait_for(kept.server, "query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock'")
        within = kept.clock()
        writer.rollback()
        joining.result(60)
    joined = kept.record.tables["public.other"]
    first = kept.position_of(within, "stock")
    after = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=joined.at)
    assert Lsn.parse(first) < Lsn.parse(kept.position_of(after, "stock"))
    assert kept.position_of(within, "stock") == first


def test_large_transactions_count_by_their_commit(kept: Kept, commits_at: _Commits) -> None:
    kept.keep("stock")
    commits_at.make(100)
    for seconds in (200, 300):
        start = seconds * 10_000
        commits_at.make(seconds, f"INSERT INTO stock SELECT i, 1 FROM generate_series({start}, {start} + 5000) i")
    assert [commits_at.up_to(seconds) for seconds in (150, 250, 350)] == [1, 2, 3]


def test_a_log_is_looked_through_in_parts(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep("stock")
    with kept.server.connect(database=kept.database) as connection:
        for number in range(200):
            connection.execute(f"UPDATE stock SET v = {number}")
    start = kept.slot.confirmed
    assert start is not None
    with closing(commits.commits_since(kept.source.settings, kept.name, start)) as found:
        whole = list(found)
    monkeypatch.setattr(commits, "PART_BYTES", 5_000)
    with closing(commits.commits_since(kept.source.settings, kept.name, start)) as found:
        # More may follow, because the server analyzes tables itself.
        assert list(found)[: len(whole)] == whole
    assert len(whole) >= 200


def test_a_time_can_be_asked_for_again_if_another_run_had_the_slot_give_up_meanwhile(kept: Kept) -> None:
    kept.keep("stock")
    start = kept.slot.confirmed
    assert start is not None
    kept.run("UPDATE stock SET v = 1", f"SELECT pg_replication_slot_advance('{kept.name}', pg_current_wal_flush_lsn())")
    with (
        pytest.raises(SourceUnavailable, match="another run"),
        closing(commits.commits_since(kept.source.settings, kept.name, start)) as found,
    ):
        next(found)


@pytest.mark.parametrize("begun_then", [False, True])
def test_a_time_in_the_future_does_not_hold_the_slot_until_then(
    kept: Kept, commits_at: _Commits, monkeypatch: pytest.MonkeyPatch, begun_then: bool
) -> None:
    """The server's clock was wrong for a while. The slot would keep the log until its disk is full."""
    kept.keep("stock")
    begun = kept.slot.confirmed
    future = 10**9
    if begun_then:
        with session(kept.source.settings) as connection:
            (mark,) = kept.record.marks
            marks = (replace(mark, latest=mark.latest + future * 1_000_000),)
            store(connection, kept.name, replace(kept.record, marks=marks))
    commits_at.make(future)
    kept.give_up(hours=1)
    assert kept.slot.confirmed == begun
    before, old = kept.here(), kept.clock()
    kept.run("UPDATE stock SET v = 2")
    recent = kept.here()
    # The clock cannot be advanced by an hour, so the hour is set to end at once.
    an_hour_later = int(old.timestamp() * 1_000_000) + 3_600_000_000
    monkeypatch.setattr("airflow_provider_cdc.sources.postgres.steps.standing_slot.now", lambda _: an_hour_later)
    kept.give_up(hours=1)
    confirmed = kept.slot.confirmed
    assert confirmed is not None
    assert Lsn.parse(before) <= confirmed < Lsn.parse(recent)
    assert kept.position_of(old, "stock") == str(confirmed)


def test_a_transaction_that_was_prepared_long_ago_belongs_to_its_commit(kept: Kept) -> None:
    kept.keep("stock")
    kept.run("BEGIN; UPDATE stock SET v = 77; PREPARE TRANSACTION 'p'")
    before = kept.here()
    kept.run("COMMIT PREPARED 'p'")
    after = kept.here()
    for point, images in ((before, 20), (after, 0)):
        begun = kept.record_at(point, "stock")
        assert _images(kept, begun.identity, begun.position, begun.tables) == images
        kept.source.release(RUN_ID)


@pytest.mark.slow
def test_a_position_within_a_record_is_the_prefix_before_it(kept: Kept) -> None:
    kept.keep("stock")
    start = Lsn.parse(kept.here())
    kept.run("UPDATE stock SET v = 5")
    end = Lsn.parse(kept.here())
    found = {}
    for offset in (0, 1, 100, int(end) - int(start)):
        point = Lsn(int(start) + offset)
        begun = kept.record_at(str(point), "stock")
        assert begun.position == point
        found[offset] = _images(kept, begun.identity, begun.position, begun.tables)
        kept.source.release(RUN_ID)
    assert found == {0: 20, 1: 20, 100: 20, int(end) - int(start): 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE stock ADD COLUMN w int",
        "ALTER TABLE stock RENAME COLUMN v TO w; ALTER TABLE stock RENAME COLUMN w TO v",
        "ALTER TABLE stock RENAME TO stocks; ALTER TABLE stocks RENAME TO stock",
        "ALTER SCHEMA public RENAME TO private; ALTER SCHEMA private RENAME TO public",
        "TRUNCATE stock",
        "VACUUM FULL stock",
        "ALTER TABLE stock REPLICA IDENTITY DEFAULT; ALTER TABLE stock REPLICA IDENTITY FULL",
        "ALTER TABLE stock DROP CONSTRAINT stock_pkey; ALTER TABLE stock ADD PRIMARY KEY (id)",
        "ALTER PUBLICATION {name} DROP TABLE stock; ALTER PUBLICATION {name} ADD TABLE stock",
        "DROP TABLE stock; CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL",
    ],
)
def test_what_was_altered_cannot_be_gone_back_beyond_even_if_it_was_undone(kept: Kept, ddl: str) -> None:
    kept.keep("stock")
    point = kept.here()
    kept.check(point, "stock")
    for statement in ddl.format(name=kept.name).split("; "):
        kept.run(statement)
    problems = kept.refusals(point, "stock")
    assert any(problem.where == "public.stock" and "altered" in problem.what for problem in problems), problems
    # The next run starts a new past, and the error says since when.
    kept.keep("stock")
    (problem,) = kept.refusals(point, "stock")
    assert "covers the table only since" in problem.what
    earliest = kept.record.tables["public.stock"]
    assert format_micros(earliest.at) in problem.hint
    kept.check(format_micros(earliest.at), "stock")
    # Where the log tells when it was altered (`catalog_versions`), also since then.
    if earliest.shape_position == earliest.position:
        kept.refusals(format_micros(earliest.at - 1), "stock")
    kept.check(earliest.position, "stock")


def test_a_publication_that_was_altered_is_relied_on_again(kept: Kept) -> None:
    kept.keep("stock")
    kept.run(f"ALTER PUBLICATION {kept.name} SET (publish_via_partition_root = true)")
    kept.keep("stock")
    begun = kept.record_at(kept.here(), "stock")
    assert begun.tables


def test_what_changes_no_row_and_no_meaning_ends_no_past(kept: Kept) -> None:
    kept.keep("stock")
    point = kept.here()
    kept.run("CREATE INDEX ON stock (v)", "CREATE UNIQUE INDEX ON stock (id, v)", "ANALYZE stock", "VACUUM stock")
    kept.run("UPDATE stock SET v = 9", "CREATE TABLE unrelated (v int)")
    kept.check(point, "stock")


def test_a_key_that_was_lifted_for_a_while_cannot_be_gone_back_beyond(kept: Kept) -> None:
    kept.run(
        "CREATE TABLE bare (id int NOT NULL, v int); ALTER TABLE bare REPLICA IDENTITY FULL",
        "CREATE UNIQUE INDEX bare_key ON bare (id)",
        "INSERT INTO bare VALUES (1, 1)",
    )
    kept.keep("bare")
    with (
        kept.server.connect(database=kept.database, autocommit=False) as first,
        kept.server.connect(database=kept.database, autocommit=False) as second,
        kept.server.connect(database=kept.database) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        # Half-way through, the server waits for users of the index, and leaves it dead if the wait is interrupted.
        first.execute("SELECT FROM bare")
        dropping = pool.submit(other.execute, "DROP INDEX CONCURRENTLY bare_key")
        wait_for(kept.server, "wait_event_type = 'Lock' AND query LIKE 'DROP INDEX%'")
        second.execute("SELECT FROM bare")
        first.rollback()
        while kept.ask("SELECT indislive FROM pg_index WHERE indexrelid = 'bare_key'::regclass"):
            time.sleep(0.02)
        other.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            dropping.result(60)
    kept.run("INSERT INTO bare VALUES (1, 2)")
    point = kept.here()
    kept.run("DELETE FROM bare WHERE v = 2", "REINDEX INDEX bare_key")
    (problem,) = kept.refusals(point, "bare")
    assert "altered" in problem.what


@pytest.mark.slow
def test_children_that_came_and_went_before_hide_others(kept: Kept) -> None:
    kept.run("CREATE TABLE child () INHERITS (stock)", "DROP TABLE child")
    kept.keep("stock")
    point = kept.here()
    # Of these the catalog has nothing any more.
    kept.run("CREATE TABLE child () INHERITS (stock)", "DROP TABLE child")
    (problem,) = kept.refusals(point, "stock")
    assert "the catalog does not show this" in problem.what
    kept.run("ANALYZE stock")
    kept.keep("stock")
    kept.check(kept.here(), "stock")


def test_a_partitioned_table_has_no_past(kept: Kept) -> None:
    kept.run("CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    kept.run("CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)")
    kept.run("ALTER TABLE tree REPLICA IDENTITY FULL", "ALTER TABLE leaf REPLICA IDENTITY FULL")
    kept.keep("stock", "tree")
    (problem,) = kept.refusals(kept.here(), "stock", "tree")
    assert (problem.where, problem.table) == ("public.tree", "public.tree")
    assert "more partitions can be added" in problem.what


@pytest.mark.slow
def test_tables_without_a_past_are_left_out_if_that_is_asked_for(kept: Kept) -> None:
    kept.keep("stock")
    kept.run("CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL")
    asked, options = ["public.*"], TableOptions()
    steps = replace(kept.options, as_of=kept.here(), on_table_error="skip")
    found = survey_past(kept.source, survey(kept.source, asked, options, "skip"), asked, options, steps, may_begin=True)
    assert [str(plan.table) for plan in found.plans] == ["public.stock"]
    assert "it joined the standing slot then" in found.skipped["public.other"]
    # It did join: the next run has it.
    assert "public.other" in kept.record.tables
    with pytest.raises(PreflightError, match="skipping tables does not help"):
        survey_past(
            kept.source,
            survey(kept.source, ["public.other"], options, "skip"),
            ["public.other"],
            options,
            steps,
            may_begin=True,
        )


@pytest.mark.slow
def test_before_the_slot_and_before_a_table_joined_there_is_no_past(kept: Kept) -> None:
    earlier, point = kept.clock(), kept.here()
    (problem,) = kept.refusals(point, "stock")
    assert "does not exist yet" in problem.what
    kept.keep("stock")
    for asked in (earlier, point):
        (problem,) = kept.refusals(asked, "stock")
        assert "before the standing slot" in problem.what
        (said,) = [word for word in problem.hint.split() if word.endswith("Z")]
        kept.check(said, "stock")
    kept.run("CREATE TABLE other (v int); ALTER TABLE other REPLICA IDENTITY FULL")
    between = kept.here()
    (problem,) = kept.refusals(between, "stock", "other")
    assert "is not yet in the record" in problem.what
    kept.keep("stock", "other")
    (problem,) = kept.refusals(between, "stock", "other")
    assert "it joined the standing slot then" in problem.what


@pytest.mark.parametrize("point", ["2999-01-01T00:00:00Z", "FFFFFFFF/0", "e2a1b8a8-c1f1-11ee-9c5a-0242ac120002:1-5"])
def test_what_is_no_point_of_this_server_s_past_is_refused(kept: Kept, point: str) -> None:
    kept.keep("stock")
    (problem,) = kept.refusals(point, "stock")
    assert problem.where == "parameter as_of"
    assert "in the future" in problem.what or "is a GTID set" in problem.what


def test_without_a_standing_slot_there_is_no_past(kept: Kept) -> None:
    kept.options, before = StepOptions(), kept.options
    (problem,) = kept.refusals(kept.here(), "stock")
    assert "standing_slot" in problem.hint
    kept.options = before


def test_a_replica_identity_that_is_not_full_is_refused(kept: Kept) -> None:
    kept.keep("stock")
    point = kept.here()
    plans = kept.plans("stock")
    kept.run("ALTER TABLE stock REPLICA IDENTITY DEFAULT")
    parsed = as_of.parse(point)
    assert parsed is not None
    with pytest.raises(PreflightError, match="REPLICA IDENTITY FULL"):
        kept.source.record_past(parsed, plans, kept.options, RUN_ID)


@pytest.mark.slow
def test_what_commits_before_the_position_and_nobody_sees_yet_is_waited_for(crashing: Kept) -> None:
    server = crashing.server
    crashing.run("INSERT INTO stock VALUES (1, 1)")
    crashing.keep("stock")
    plans = crashing.plans("stock")
    with server.connect() as writer, background(server) as pool:
        server.set_standbys("nobody")
        committing = pool.submit(writer.execute, "UPDATE stock SET v = 2")
        wait_for(server, "wait_event = 'SyncRep'")
        point = Lsn.parse(crashing.ask("SELECT pg_current_wal_flush_lsn()::text"))
        options = replace(crashing.options, lock=replace(crashing.options.lock, slot_wait_seconds=1))
        with pytest.raises(LockNotGranted, match="SyncRep"):
            crashing.source.record_past(point, plans, options, RUN_ID)
        server.set_standbys("")
        committing.result(60)
        begun = crashing.source.record_past(point, plans, options, RUN_ID)
    assert _images(crashing, begun.identity, begun.position, begun.tables) == 0


def test_the_owner_of_the_tables_needs_no_more_rights(kept: Kept) -> None:
    role = f"keeper_{kept.database}"
    kept.run(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p'",
        f"ALTER TABLE stock OWNER TO {role}",
        f"GRANT CREATE ON DATABASE {kept.database} TO {role}",
    )
    own, kept.source = kept.source, PostgresSource(replace(kept.source.settings, user=role, password="p"))
    kept.keep("stock")
    now = kept.clock()
    assert kept.position_of(now, "stock")
    kept.give_up(hours=1)
    kept.forget()
    kept.source = own
    kept.run(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


@pytest.mark.slow
def test_a_crash_leaves_the_run_s_slot_where_it_is(crashing: Kept) -> None:
    crashing.keep("stock")
    crashing.run("INSERT INTO stock VALUES (1, 1)")
    point = crashing.here()
    crashing.run("INSERT INTO stock VALUES (2, 2)")
    begun = crashing.record_at(point, "stock")
    crashing.server.crash()
    deadline = time.monotonic() + 60
    while True:
        try:
            crashing.source.check_identity(begun.identity, begun.position)
            break
        except CdcError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert _images(crashing, begun.identity, begun.position, begun.tables) == 1


def test_nothing_is_left_of_a_refusal(kept: Kept) -> None:
    kept.keep("stock")
    point = kept.here()
    kept.run("ALTER TABLE stock ADD COLUMN w int")
    kept.refusals(point, "stock")
    with session(kept.source.settings) as connection:
        assert slots.names_of_run(connection, RUN_ID) == []


def _images(kept: Kept, identity: object, position: Position, tables: object) -> int:
    """How many row images the log has since a position."""
    assert isinstance(identity, Facts)
    assert isinstance(tables, tuple)
    bound = kept.source.bound_reads()
    source = kept.source.of_run(identity, position)
    (segment,) = source.segments(Start(position, identity), AT_START, bound.log_end)
    tracked = [TrackedTable(index, table) for index, table in enumerate(tables)]
    with source.read_segment(segment, position, tracked) as reader:
        for _ in reader:
            pass
        return reader.summary.row_images
