"""The reasons why a copy cannot be rolled forward are reported beforehand, for each table. The log since it is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import LogGone, PreflightError, SourceReplaced, TransientError
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.planning.point import record_point
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import commits, slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import KNOWN_DAYS, Mark, alone, now, store
from airflow_provider_cdc.sources.postgres.steps import standing_slot
from tests.conftest import PostgresFactory
from tests.sources.postgres.standing import RUN_ID, Kept

TABLES = ("stock", "b", "k", "tree")
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"


@dataclass
class Since:
    """A moment at which copies are exact, and what is done after it."""

    kept: Kept
    point: InitialPoint

    def do(self, *statements: str) -> None:
        self.kept.run(*(statement.format(slot=self.kept.name) for statement in statements))

    def refused(self, to: str = "") -> dict[str, str]:
        point = self.point
        wanted = Lsn.parse(to) if to else None
        found = self.kept.source.refusals_since(point.identity, point.position, point.tables, wanted, self.kept.options)
        return {table.name: why for table, why in found.items()}

    def plans(self) -> list[TablePlan]:
        """Those of the next night, on which all copies are rolled forward."""
        found = self.kept.plans(*TABLES)
        return [replace(plan, base="before", base_position=str(self.point.position)) for plan in found]

    def next(self) -> InitialPoint:
        return record_point(self.kept.source, self.kept.options, self.plans(), RUN_ID)


def publish(kept: Kept, point: InitialPoint) -> None:
    """What a run does at last."""
    kept.give_up(48, {str(table.name): point.position for table in point.tables})


@pytest.fixture
def since(kept: Kept) -> Since:
    kept.run(
        "CREATE TABLE b (id int PRIMARY KEY, v int); ALTER TABLE b REPLICA IDENTITY FULL",
        "CREATE TABLE k (v int); ALTER TABLE k REPLICA IDENTITY FULL; CREATE SCHEMA other",
        "CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY RANGE (id); ALTER TABLE tree REPLICA IDENTITY FULL",
        "CREATE TABLE low PARTITION OF tree FOR VALUES FROM (0) TO (10); ALTER TABLE low REPLICA IDENTITY FULL",
        "CREATE TABLE high PARTITION OF tree FOR VALUES FROM (10) TO (20); ALTER TABLE high REPLICA IDENTITY FULL",
    )
    kept.keep(*TABLES)
    point = kept.source.record_initial(kept.plans(*TABLES), kept.options.lock, RUN_ID)
    kept.source.release(RUN_ID)
    publish(kept, point)
    return Since(kept, point)


@pytest.mark.parametrize(
    ("statements", "tables", "message"),
    [
        pytest.param(
            [
                "UPDATE stock SET v = 2",
                "INSERT INTO k VALUES (1)",
                "INSERT INTO tree VALUES (1), (11)",
                "UPDATE tree SET id = 12 WHERE id = 1",
            ],
            "",
            "",
            id="rows",
        ),
        pytest.param(["CREATE INDEX ON b (v)", "ANALYZE", "VACUUM", "CREATE TABLE c (v int)"], "", "", id="harmless"),
        pytest.param(["TRUNCATE b, k"], "bk", "altered since", id="truncate"),
        pytest.param(["BEGIN; DROP TABLE b; CREATE TABLE b (id int PRIMARY KEY, v int); COMMIT"], "b", "", id="anew"),
        pytest.param(
            ["ALTER TABLE b ADD n int", "ALTER TABLE b DROP n"],
            "b",
            "altered since",
            id="there and back",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["ALTER TABLE b REPLICA IDENTITY DEFAULT", "UPDATE b SET v = 1", "ALTER TABLE b REPLICA IDENTITY FULL"],
            "b",
            "altered since",
            id="identity there and back",
        ),
        pytest.param(
            ["ALTER TABLE b REPLICA IDENTITY DEFAULT"], "b", "not FULL", id="no identity", marks=pytest.mark.slow
        ),
        pytest.param(["VACUUM FULL b"], "b", "altered since", id="another file", marks=pytest.mark.slow),
        pytest.param(
            ["ALTER TABLE b RENAME TO x", "ALTER TABLE x RENAME TO b"],
            "b",
            "altered",
            id="renamed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["ALTER TABLE b SET SCHEMA other", "ALTER TABLE other.b SET SCHEMA public"],
            "b",
            "",
            id="moved",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [
                "ALTER PUBLICATION {slot} DROP TABLE b",
                "INSERT INTO b VALUES (5)",
                "ALTER PUBLICATION {slot} ADD TABLE b",
            ],
            "b",
            "the publication was altered",
            id="not told for a while",
        ),
        pytest.param(
            ["CREATE TABLE more PARTITION OF tree FOR VALUES FROM (20) TO (30)"], "tree", "not FULL", id="a partition"
        ),
        pytest.param(
            [
                "ALTER TABLE tree DETACH PARTITION low",
                "ALTER TABLE tree ATTACH PARTITION low FOR VALUES FROM (0) TO (10)",
            ],
            "tree",
            "altered since",
            id="a partition there and back",
            marks=pytest.mark.slow,
        ),
        pytest.param(["TRUNCATE high"], "tree", "altered since", id="a partition truncated"),
    ],
)
def test_tables_that_the_log_cannot_roll_forward(
    since: Since, statements: Sequence[str], tables: str, message: str
) -> None:
    since.do(*statements)
    found = since.refused()
    assert sorted(found) == (["tree"] if tables == "tree" else sorted(tables))
    for why in found.values():
        assert re.search(message, why), why
    if found:
        # Also where it happens after preflight: then nothing of the run stays on the server.
        with pytest.raises(PreflightError):
            since.next()
        assert since.kept.ask(SLOTS) == 1
    else:
        since.next()
        assert since.kept.ask(SLOTS) == 3
        since.kept.source.release(RUN_ID)
        assert since.kept.ask(SLOTS) == 1


def test_a_table_that_joined_after_its_copy(since: Since) -> None:
    kept = since.kept
    kept.run("CREATE TABLE late (id int PRIMARY KEY, v int); ALTER TABLE late REPLICA IDENTITY FULL")
    since.point = kept.source.record_initial(kept.plans("late", "b"), kept.options.lock, RUN_ID)
    kept.source.release(RUN_ID)
    assert "does not cover it yet" in since.refused()["late"]
    kept.here()
    kept.keep("late")
    publish(kept, since.point)
    assert list(since.refused()) == ["late"]
    assert "covers the table only since" in since.refused()["late"]


def test_a_copy_that_is_older_than_the_standing_slot(since: Since) -> None:
    since.do("UPDATE b SET v = 2")
    here = since.kept.here()
    with session(since.kept.source.settings) as connection:
        commits.advance(connection, since.kept.name, Lsn.parse(here))
        record = since.kept.record.with_mark(Mark(here, now(connection)))
        store(connection, since.kept.name, record)
    assert all("reaches back to" in why for why in since.refused().values())
    assert len(since.refused()) == len(TABLES)
    with pytest.raises(PreflightError, match="reaches back to"):
        since.next()
    assert since.kept.ask(SLOTS) == 1


def test_a_standing_slot_that_was_lost_and_none_at_all(since: Since) -> None:
    options = since.kept.options
    since.kept.options = replace(options, standing_slot="")
    assert all("`Refresh.standing_slot`" in why for why in since.refused().values())
    since.kept.options = replace(options, keep_slot=True)
    assert all("keep_slot" in why for why in since.refused().values())
    assert len(since.refused()) == len(TABLES)
    since.kept.options = options
    since.do("SELECT pg_drop_replication_slot('{slot}')")
    assert all("it was lost" in why for why in since.refused().values())
    assert len(since.refused()) == len(TABLES)
    with pytest.raises(PreflightError, match="the slot was lost after the task `preflight` ran"):
        since.next()
    assert since.kept.ask(SLOTS) == 0


def test_a_copy_of_a_later_position_than_is_asked_for(since: Since) -> None:
    earlier, point = since.point.position, since.point
    since.do("UPDATE b SET v = 5")
    # What a tree was at a position in between is not known.
    assert list(since.refused(to=since.kept.here())) == ["tree"]
    since.point = replace(point, position=Lsn.parse(since.kept.here()))
    publish(since.kept, since.point)
    assert set(since.refused(to=str(earlier)).values()) == {"the copy is at a later position"}


@pytest.mark.parametrize("name", ["system_identifier", "timeline", "database_oid", "version"])
def test_a_copy_of_another_server(since: Since, name: str) -> None:
    since.point = replace(since.point, identity=Facts({**since.point.identity.fields(), name: "1234"}))
    with pytest.raises(SourceReplaced, match=rf"{name} (is )?1234"):
        since.refused()


def test_a_server_that_lost_what_the_copy_has(since: Since) -> None:
    since.point = replace(since.point, position=Lsn.parse("FFFF/0"))
    with pytest.raises(SourceReplaced, match="log ends at"):
        since.refused()


def test_a_server_whose_disk_was_put_back(since: Since) -> None:
    # As it was before the copy: the log has grown beyond its position since, and has the copy's own beginnings.
    record = since.kept.record
    with session(since.kept.source.settings) as connection:
        store(connection, since.kept.name, replace(record, copies={}))
    since.do("UPDATE stock SET v = 2")
    assert all("has no record of the copy" in why for why in since.refused().values())
    assert len(since.refused()) == len(TABLES)
    # Another copy, of another position, is no proof.
    since.kept.give_up(48, {"public.stock": since.kept.here(), "public.b": since.point.position})
    assert sorted(since.refused()) == ["k", "stock", "tree"]


@pytest.mark.slow
def test_a_copy_that_could_not_be_recorded_is_rolled_forward_by_what_its_run_recorded_when_it_began(
    kept: Kept, since: Since
) -> None:
    before, since.point = kept.record, record_point(kept.source, kept.options, kept.plans(*TABLES), RUN_ID)
    kept.source.release(RUN_ID)
    since.do("UPDATE stock SET v = 2")
    assert since.refused() == {}
    at_night = [replace(plan, base=RUN_ID) for plan in since.plans()]
    record_point(kept.source, kept.options, at_night, "20260102T000000Z-0a1b2c3d")
    kept.source.release("20260102T000000Z-0a1b2c3d")
    # Another run at the same position is of another history: the disk was put back, and positions are only numbers.
    identity = since.point.identity
    since.point = replace(
        since.point, identity=Facts({**identity.fields(), "slot": slots.name_of_try("20260102T000000Z-another")})
    )
    assert all("has no record of the copy" in why for why in since.refused().values())
    assert len(since.refused()) == len(TABLES)
    since.point = replace(since.point, identity=identity)
    with session(kept.source.settings) as connection:
        # The disk is put back to before the run.
        store(connection, kept.name, before)
    assert len(since.refused()) == len(TABLES)
    with pytest.raises(PreflightError, match="has no record of the copy"):
        record_point(kept.source, kept.options, at_night, RUN_ID)
    assert kept.ask(SLOTS) == 1


def test_copies_are_recorded_once_more_after_their_run_was_released(kept: Kept) -> None:
    kept.keep("stock")
    point = kept.source.record_initial(kept.plans("stock"), kept.options.lock, RUN_ID)
    run, copies = kept.source.of_run(point.identity, point.position), {"public.stock": point.position}
    run.note_copies(kept.options, {"lake": copies}, "")
    kept.source.release(RUN_ID)
    # A finished step is cleared.
    run.note_copies(kept.options, {"lake": copies}, "")
    with pytest.raises(LogGone):
        run.note_copies(kept.options, {"another lake": copies}, "")


@pytest.mark.slow
def test_a_position_that_cannot_be_recorded_stops_no_run_and_leaves_nothing(
    kept: Kept, since: Since, caplog: pytest.LogCaptureFixture
) -> None:
    plans = kept.plans("stock")
    kept.options = replace(kept.options, lock=replace(kept.options.lock, slot_wait_seconds=1))
    with session(kept.source.settings) as other:
        alone(other, kept.name, 1)
        with pytest.raises(TransientError):
            record_point(kept.source, kept.options, plans, RUN_ID)
    assert kept.ask(SLOTS) == 1
    kept.run("CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$")
    kept.run("CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('COMMENT') EXECUTE FUNCTION no()")
    point = record_point(kept.source, replace(kept.options, as_of=kept.here()), plans, RUN_ID)
    assert "Could not record the position" in caplog.text
    kept.source.check_identity(point.identity, point.position)


@pytest.mark.parametrize("bases", [1, 2])
def test_a_server_without_room_for_another_slot(postgres_factory: PostgresFactory, bases: int) -> None:
    kept = Kept(postgres_factory({"max_replication_slots": str(2 + bases)}), "postgres")
    kept.run("CREATE TABLE stock (id int PRIMARY KEY, v int); ALTER TABLE stock REPLICA IDENTITY FULL")
    kept.keep("stock")
    point = kept.source.record_initial(kept.plans("stock"), kept.options.lock, RUN_ID)
    kept.source.release(RUN_ID)
    publish(kept, point)
    asked = point.identity, point.position, point.tables, None, kept.options
    refused = kept.source.refusals_since(*asked, bases=bases)
    assert [f"only {1 + bases} free replication slots" in why for why in refused.values()] == [True]
    if bases > 1:
        assert kept.source.refusals_since(*asked) == {}
    kept.forget()


def test_the_log_since_the_copy_is_kept_whatever_becomes_of_the_standing_slot(since: Since) -> None:
    since.do("INSERT INTO b VALUES (1, 1)")
    point = since.next()
    source = since.kept.source.of_run(point.identity, point.position)
    since.do("INSERT INTO b VALUES (2, 2)", "SELECT pg_drop_replication_slot('{slot}')", "TRUNCATE b")
    source.check_since(since.point.identity, since.point.position)
    start = Start(since.point.position, since.point.identity, kept_by=point.identity)
    (segment,) = source.segments(start, AT_START, source.place_of(point.position))
    (table,) = (one for one in point.tables if one.name.name == "b")
    tracked = [TrackedTable(0, table, point.position, forward=True)]
    for _ in range(2):
        with source.read_segment(segment, since.point.position, tracked) as reader:
            (batch,) = reader
        rows = source.decode_images(table, batch["after"])
        assert (batch["before"].to_pylist(), rows.to_pylist()) == ([None], [{"id": 1, "v": 1}])
    source.check_identity(point.identity, point.position)
    (name,) = PostgresFacts.of(point.identity).forward_slots.values()
    since.kept.run(f"SELECT pg_drop_replication_slot('{name}')")
    with pytest.raises(LogGone):
        source.check_identity(point.identity, point.position)
    source.discard(point.identity)
    assert since.kept.ask(SLOTS) == 0


@pytest.mark.slow
def test_a_try_that_does_not_count_leaves_no_slot(since: Since) -> None:
    first, second = since.next(), since.next()
    assert since.kept.ask(SLOTS) == 5
    since.kept.source.discard(first.identity)
    since.kept.source.check_identity(second.identity, second.position)
    assert since.kept.ask(SLOTS) == 3
    # What a killed run left without a record is recognised by its names.
    since.next()
    last = since.next()
    for identity in last.superseded:
        since.kept.source.discard(identity)
    since.kept.source.check_identity(last.identity, last.position)
    assert since.kept.ask(SLOTS) == 3
    since.kept.source.release(RUN_ID)
    assert since.kept.ask(SLOTS) == 1


@pytest.mark.slow
def test_the_slot_keeps_the_log_since_the_last_copies(since: Since, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = since.kept
    hours = 0
    monkeypatch.setattr(standing_slot, "now", lambda connection: now(connection) + hours * 3_600_000_000)
    positions = []
    for _ in range(3):
        since.do("UPDATE stock SET v = v + 1")
        positions.append(kept.here())
    # The clock cannot be put on by hours.
    hours = 10
    kept.give_up(1, {"public.stock": positions[1], "public.b": positions[2]}, refresh="auto")
    assert kept.slot.confirmed is not None
    assert Lsn.parse(positions[0]) <= kept.slot.confirmed <= Lsn.parse(positions[1])
    # Another lake, and another run of this one.
    kept.give_up(1, {"public.k": positions[2]}, lake="other", refresh="auto")
    kept.give_up(1, {"public.b": positions[2]}, refresh="auto")
    assert kept.slot.confirmed <= Lsn.parse(positions[1])
    kept.give_up(1, {"public.stock": positions[2]}, refresh="auto")
    assert Lsn.parse(positions[1]) < kept.slot.confirmed <= Lsn.parse(positions[2])
    # Its copies are not rolled forward any more; the other lake's still are.
    since.do("UPDATE stock SET v = v + 1")
    positions.append(kept.here())
    kept.give_up(1, {"public.stock": positions[3], "public.b": positions[3]}, refresh="full")
    assert kept.slot.confirmed <= Lsn.parse(positions[2])
    hours += 24 * KNOWN_DAYS + 1
    kept.give_up(1)
    assert kept.slot.confirmed > Lsn.parse(positions[2])
    assert kept.record.copies == {}


def test_a_copy_older_than_the_slot_does_not_hold_it(since: Since, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = since.kept
    # The run that made it took longer than the slot keeps, and meanwhile another lake's run advanced the slot.
    old = since.point.position
    monkeypatch.setattr(standing_slot, "now", lambda connection: now(connection) + 10 * 3_600_000_000)
    stood = Lsn.expect(old)
    for lake, wanted in (("other", {}), ("lake", {"public.b": old}), ("other", {})):
        since.do("UPDATE stock SET v = v + 1")
        kept.give_up(1, wanted, lake, refresh="auto")
        confirmed = kept.slot.confirmed
        assert confirmed is not None
        assert confirmed > stood
        stood = confirmed
