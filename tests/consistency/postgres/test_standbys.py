"""Copies whose tables are read on standbys: exact whatever the standbys lack or show, or refused with the reason.

The oracle is the source itself, read while nobody writes, or PostgreSQL's own recovery to the position.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import (
    ConfigurationError,
    ExactnessError,
    LogGone,
    PreflightError,
    SourceUnavailable,
)
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool import Spooler
from airflow_provider_cdc.sources.api.registry import open_source
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy
from harness.throw_away import throw_away
from tests.consistency.mysql.test_replicas import Name
from tests.consistency.postgres.nights import FULL
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.seeds import seeds
from tests.soon import soon

LONG = pytest.mark.long
ROWS = 400
OPTIONS = {"fsync": "on", "full_page_writes": "on", "wal_retrieve_retry_interval": "100ms"}
FEEDBACK = {"hot_standby_feedback": "on"}
Rows = dict[str, Counter[tuple[Any, ...]]]


class Standbys:
    """A source with standbys."""

    def __init__(self, primary: PostgresServer, spark: SparkSession, folder: Path, stack: ExitStack) -> None:
        self.primary, self.spark, self.folder, self.stack = primary, spark, folder, stack
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        self.number, self.run_id = 0, ""
        self.do(
            "CREATE TYPE mood AS ENUM ('sad', 'glad')",
            "CREATE TABLE stock (id int PRIMARY KEY, note text, mood mood)",
            "CREATE TABLE visits (id int, note text)",
            "CREATE TABLE prices (id int PRIMARY KEY, price money)",
            *(FULL.format(name) for name in ("stock", "visits", "prices")),
            f"INSERT INTO stock SELECT i, 'old', 'sad' FROM generate_series(10, {ROWS}) i",
            "INSERT INTO visits SELECT i % 7, 'old' FROM generate_series(1, 50) i",
            "INSERT INTO prices VALUES (1, 2.5)",
        )

    def do(self, *statements: str, server: PostgresServer | None = None) -> None:
        with (server or self.primary).connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def standby(self, of: PostgresServer | None = None, **options: str) -> PostgresServer:
        directory = self.stack.enter_context(throw_away("cdc-standby-"))
        server = (of or self.primary).standby(directory, options)
        self.stack.callback(server.kill)
        return server

    def caught_up(self, standby: PostgresServer) -> None:
        end = self.primary.query("SELECT pg_current_wal_flush_lsn()")[0][0]
        soon(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)), [(True,)])

    def pause(self, standby: PostgresServer) -> None:
        standby.query("SELECT pg_wal_replay_pause()")

        # The replay pauses at its next record.
        def state() -> list[tuple[Any, ...]]:
            self.write("pause")
            return standby.query("SELECT pg_get_wal_replay_pause_state()")

        soon(state, [("paused",)])

    def run(
        self,
        *standbys: PostgresServer | Proxy,
        log: PostgresServer | Proxy | None = None,
        of: PostgresServer | Proxy | None = None,
        **more: Any,
    ) -> Pipeline:
        self.number += 1
        self.run_id = f"202602{self.number:02}T000000Z-00000000"
        own = settings_of(self.primary)
        replicas = tuple(replace(own, host=one.host, port=one.port) for one in standbys)
        log_server = replace(own, host=log.host, port=log.port) if log is not None else None
        settings = replace(own, port=(of or self.primary).port, replicas=replicas, log_server=log_server)
        target = (self.folder / "lake").as_uri()
        # The log of money is read on the source only.
        tables = ["public.*", *(["!public.prices"] if log else [])]
        run = Pipeline(self.spark, settings, target, tables, run_id=self.run_id, **{"spool": "off", **more})
        run.preflight()
        return run

    def begin(self, run: Pipeline) -> Rows:
        """Fix the position of a run, while nobody writes. Return the rows at this position."""
        run.lock_and_record()
        return self.rows()

    def rows(self) -> Rows:
        tables = ("stock", "visits", "prices")
        shown = {"prices": "id, price::text", "stock": "id, note, mood::text"}
        return {
            f"public.{name}": Counter(self.primary.query(f"SELECT {shown.get(name, '*')} FROM {name}"))
            for name in tables
        }

    def snapshot(self, run: Pipeline) -> Future[dict[str, Any]]:
        """Begin to read the tables."""
        return self.pool.submit(run.snapshot)

    def end(self, run: Pipeline, expected: Rows | None, reads: Future[dict[str, Any]] | None = None) -> Any:
        """Finish the run, and compare. Return the standbys that were read.

        :param expected: None: the run is exact at the end of its reads, since when nobody has written.
        """
        result = (self.snapshot(run) if reads is None else reads).result()
        run.extract_delta()
        tables = run.consolidate()["published"]
        expected = expected or self.rows()
        assert {name: Counter(published(uri)[1]) for name, uri in tables.items()} == {
            str(plan.table): expected[str(plan.table)] for plan in run.plans
        }
        return result["replicas"]

    def publish(self, run: Pipeline) -> Rows:
        return {name: Counter(published(uri)[1]) for name, uri in run.consolidate()["published"].items()}

    def slots(self, *servers: PostgresServer) -> list[str]:
        """The slots of runs on the source and on other servers."""
        sql = "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cdc%'"
        return [name for server in (self.primary, *servers) for (name,) in server.query(sql)]

    def write(self, note: str, server: PostgresServer | None = None) -> None:
        self.do(
            f"UPDATE stock SET note = '{note}', mood = 'glad' WHERE id % 3 = 0",
            "DELETE FROM stock WHERE id % 7 = 1",
            f"INSERT INTO stock SELECT max(id) + 1, '{note}' FROM stock",
            "UPDATE stock SET id = id + 100000 WHERE id % 11 = 2 AND id < 100000",
            f"UPDATE visits SET note = '{note}'",
            "UPDATE prices SET price = price + 1::money",
            server=server,
        )

    def waits(self, server: PostgresServer) -> bool:
        """Whether a session of the run waits on a standby."""
        return self._is_in(server, "%pg_get_wal_replay_pause_state%")

    def is_confirmed(self, server: PostgresServer) -> bool:
        """Whether a session of the run has just looked for transactions of the source on a standby."""
        return self._is_in(server, "%pg_xact_status%")

    def is_read(self, server: PostgresServer) -> bool:
        """Whether a session of the run has begun to read chunks on a standby."""
        return self._is_in(server, 'COPY %ONLY "public"."stock"%') or self._is_in(server, "COMMIT")

    def _is_in(self, server: PostgresServer, statement: str) -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
        return bool(server.query(sql, (statement,))[0][0])


@pytest.fixture
def pair(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Standbys]:
    version = getattr(request, "param", VERSIONS[-1])
    with ExitStack() as stack:
        primary = stack.enter_context(primary_of(version, **OPTIONS))
        yield Standbys(primary, spark, tmp_path, stack)


@pytest.mark.slow
def test_reads_wait_for_a_lagging_standby_and_changes_that_it_shows_are_undone(pair: Standbys) -> None:
    """The standby stops before the position is fixed. It has later changes, too, when the tables are read."""
    standby = pair.standby()
    run = pair.run(standby)
    where = {plan.table.name: plan.reason.rpartition("; ")[2] for plan in run.plans}
    assert where == {"stock": "read on a replica", "visits": "read on the source", "prices": "read on the source"}
    pair.pause(standby)
    pair.write("before")
    expected = pair.begin(run)
    pair.write("after")
    source = run.source.of_run(*run.source.here())
    (stock,) = [table for table in source.tables_of(run.plans) if table.name.name == "stock"]
    lagging = pytest.raises(SourceUnavailable, match=r"has lagged behind position .* its replay is paused")
    with lagging, source.reader(stock, "watermark", LockPolicy(replica_wait_seconds=0)):
        pass
    reads = pair.snapshot(run)
    soon(lambda: pair.waits(standby), True)
    standby.query("SELECT pg_wal_replay_resume()")
    (read,) = pair.end(run, expected, reads).values()
    assert read["waited"] > 0
    assert read["rows"] > ROWS // 2


@LONG
def test_what_is_touched_meanwhile_is_read_again_on_the_source(pair: Standbys) -> None:
    """The touched keys are found in the log of another standby, which lags."""
    standby, lagging = pair.standby(), pair.standby(None, **FEEDBACK)
    pair.do("ALTER TABLE stock REPLICA IDENTITY DEFAULT")
    with Proxy(standby.port) as name:
        run = pair.run(name, log=lagging, chunk_rows=20)
        assert {plan.table.name: plan.consistency for plan in run.plans}["stock"] == "again"
        run.lock_and_record()
        statements = count()

        def meanwhile() -> None:
            if next(statements) % 8 == 7:
                pair.write("while tables are read")

        name.meanwhile = meanwhile
        pair.pause(lagging)
        reads = pair.snapshot(run)
        soon(lambda: pair.waits(lagging), True)
        lagging.query("SELECT pg_wal_replay_resume()")
        assert reads.result()["keys_again"] > 0
        assert pair.end(run, None, reads)


@pytest.mark.slow
def test_the_log_is_read_from_a_slot_on_a_lagging_standby(pair: Standbys) -> None:
    """The standby has less of the log than the run needs, when the position is fixed and when the log is read."""
    standby = pair.standby(None, **FEEDBACK)
    run = pair.run(log=standby)
    pair.pause(standby)
    begun = pair.pool.submit(pair.begin, run)
    soon(lambda: pair.waits(standby), True)
    standby.query("SELECT pg_wal_replay_resume()")
    expected = begun.result()
    pair.pause(standby)
    pair.write("after")
    run.snapshot()
    ended = pair.pool.submit(run.extract_delta)
    soon(lambda: pair.waits(standby), True)
    standby.query("SELECT pg_wal_replay_resume()")
    ended.result()
    copies = pair.publish(run)
    assert copies == {name: expected[name] for name in copies}
    assert pair.slots(standby) == []


@LONG
@pytest.mark.parametrize("pair", [one for one in VERSIONS if one >= 16], indirect=True)
@pytest.mark.parametrize("how", ["crash", "restart", "promote", "lose"])
def test_the_standby_with_the_slot_goes_away_in_mid_run(how: str, pair: Standbys) -> None:
    standby = pair.standby(None, **FEEDBACK)
    run = pair.run(log=standby)
    expected = pair.begin(run)
    pair.write("after")
    reads = run.snapshot()
    assert reads
    if how == "crash":
        standby.crash()
    elif how == "restart":
        standby.stop()
        standby.restart({})
    elif how == "promote":
        pair.do("SELECT pg_promote()", server=standby)
        pair.write("promoted", standby)
    else:
        standby.stop()
        standby.restart({"hot_standby_feedback": "off"})
        pair.do("CREATE TABLE gone (id int)", "DROP TABLE gone", "VACUUM pg_class, pg_attribute, pg_type")
        soon(lambda: standby.query("SELECT wal_status FROM pg_replication_slots"), [("lost",)])
    if how in ("promote", "lose"):
        what = {"promote": "it was promoted", "lose": "removed log|lost its log|hot_standby_feedback"}[how]
        with pytest.raises((ExactnessError, LogGone), match=what):
            run.extract_delta()
        run.release()
        assert pair.slots(standby) == []
        return
    run.extract_delta()
    copies = pair.publish(run)
    assert copies == {name: expected[name] for name in copies}


@pytest.mark.slow
def test_slots_on_a_standby_that_killed_attempts_left_are_dropped(
    pair: Standbys, caplog: pytest.LogCaptureFixture
) -> None:
    """Two attempts are killed before they record their slots."""
    standby = pair.standby(None, **FEEDBACK)
    run = pair.run(log=standby)
    for _ in range(2):
        run.source.record_initial(run.plans, LockPolicy(), pair.run_id)
    assert len(pair.slots(standby)) == 4
    expected = pair.begin(run)
    assert len(pair.slots(standby)) == 2
    # Who does not know the standby drops nothing, so that the slot is found later.
    of_source = open_source(settings_of(pair.primary))
    with pytest.raises(ConfigurationError, match="the run's slot is on a standby"):
        of_source.release(pair.run_id)
    assert {("is on a standby" in of_source.drop_unused(one)) for one in of_source.kept_objects([])} == {True}
    assert pair.end(run, expected) == {}
    assert pair.slots(standby) == []
    run.source.record_initial(run.plans, LockPolicy(), pair.run_id)
    assert [run.source.drop_unused(one) for one in run.source.kept_objects([])] == ["", ""]
    assert pair.slots(standby) == []
    # A slot that is not found may be on another standby.
    assert "does not have the slot" not in caplog.text
    run.source.record_initial(run.plans, LockPolicy(), pair.run_id)
    pair.do("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", server=standby)
    run.release()
    assert "does not have the slot" in caplog.text
    assert pair.slots(standby) == []


@pytest.mark.slow
def test_a_standby_that_stops_while_the_slot_is_created_is_named(pair: Standbys) -> None:
    """No transaction delays the slot."""
    standby = pair.standby(None, **FEEDBACK)
    with Proxy(standby.port) as name:
        run = pair.run(log=name, lock=LockPolicy(slot_wait_seconds=1))
        name.meanwhile = lambda: pair.pause(standby) if pair.is_confirmed(standby) else None
        with pytest.raises(SourceUnavailable, match="its replay is paused"):
            run.lock_and_record()
    assert pair.slots(standby) == []


@pytest.mark.slow
def test_a_standby_that_cannot_keep_the_log_is_refused(pair: Standbys) -> None:
    standby = pair.standby(None, wal_level="replica", max_replication_slots="1", hot_standby_feedback="off")
    own = settings_of(pair.primary)
    source = open_source(replace(own, log_server=replace(own, port=standby.port)))
    with pytest.raises(PreflightError) as refused:
        source.preflight(["public.*"])
    for what in (
        "wal_level is replica",
        "hot_standby_feedback is off",
        "max_replication_slots is 1",
        "public.prices: the log of price can be read only on the source",
    ):
        assert what in str(refused.value)
    with pytest.raises(PreflightError, match="it is no standby"):
        pair.run(log=pair.primary)
    fit = pair.standby(None, **FEEDBACK)
    with pytest.raises(PreflightError, match="the standing slot is on the source"):
        pair.run(log=fit, standing_slot="nightly")
    assert pair.slots(standby, fit) == []


@LONG
def test_a_standby_without_logical_slots_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    if VERSIONS[0] >= 16:
        pytest.skip("no PostgreSQL 15")
    with ExitStack() as stack:
        pair = Standbys(stack.enter_context(primary_of(15, **OPTIONS)), spark, tmp_path, stack)
        with pytest.raises(PreflightError, match="no logical replication slots on standbys"):
            pair.run(log=pair.standby(None, **FEEDBACK))


@pytest.mark.slow
def test_a_copy_of_the_source_does_not_have_the_slot(pair: Standbys) -> None:
    """A copy of the source's files has its identity and the run's publication. Reads on it do not count."""
    standby = pair.standby(None, **FEEDBACK)
    with Proxy(pair.primary.port) as name:
        run = pair.run(log=standby, of=name)
        pair.begin(run)
        copy = pair.standby()
        copy.stop()
        (copy.data / "standby.signal").unlink()
        copy.restart({})
        (stock,) = [table for table in run.source.tables_of(run.plans) if table.name.name == "stock"]
        manifest = Run.load(run.run).manifest
        source = run.source.of_run(manifest.identity, manifest.initial)
        name.target = copy.port
        with (
            pytest.raises(LogGone, match="copy of the server that never had the slot"),
            source.reader(stock, "watermark", LockPolicy()),
        ):
            pass


@LONG
def test_a_run_with_pieces_of_the_log_of_a_standby_moves(pair: Standbys) -> None:
    """A table is altered while tables are read, after pieces of the log were recorded and their log was given up."""
    standby = pair.standby(None, **FEEDBACK)
    with Proxy(standby.port) as name:
        run = pair.run(name, log=standby, chunk_rows=20, spool="auto")
        pair.begin(run)
        begun = Run.load(run.run)
        at = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
        (position,) = standby.query(at)
        source: Any = run.source
        spooler = Spooler(Step(pair.spark, begun, source.of_run(begun.manifest.identity, begun.manifest.initial)))
        for note in ("first piece", "second piece"):
            pair.write(note)
            assert spooler.take()
        assert standby.query(at) != [position]
        statements = count()

        def alter() -> None:
            if next(statements) == 12:
                pair.write("third piece")
                pair.do("ALTER TABLE visits ADD COLUMN more int")

        name.meanwhile = alter
        reads = pair.snapshot(run)
        assert reads.result()
        assert Run.load(run.run).generation == 2
        pair.end(run, None, reads)
    assert pair.slots(standby) == []


@pytest.mark.slow
def test_what_is_no_standby_of_the_source_is_refused(pair: Standbys) -> None:
    """A copy of the source's files has its system identifier and its timeline, and gives the same positions to other
    transactions. A standby of the copy cannot be told from one of the source, until it has to show transactions."""
    copy = pair.standby()
    run = pair.run(copy)
    for change, back, message in (
        ("SELECT pg_wal_replay_pause()", "SELECT pg_wal_replay_resume()", "its replay is paused"),
        ("ALTER SYSTEM SET recovery_min_apply_delay = '1h'", "ALTER SYSTEM RESET ALL", "delay is 1h"),
    ):
        pair.do(change, "SELECT pg_reload_conf()", server=copy)
        with pytest.raises(PreflightError, match=message):
            soon(lambda: pair.run(copy) and None, "refused")
        pair.do(back, "SELECT pg_reload_conf()", server=copy)
    with pytest.raises(PreflightError, match="it is no standby"):
        pair.run(pair.primary)
    with pytest.raises(PreflightError, match="fsync is off: in a crash, the standby may lose changes"):
        pair.run(pair.standby(fsync="off"))
    pair.primary.restart({"fsync": "off"})
    with pytest.raises(PreflightError, match="fsync is off: in a crash, the source may lose log"):
        pair.run(copy)
    pair.primary.restart({"fsync": "on"})
    copy.stop()
    (copy.data / "standby.signal").unlink()
    copy.restart({})
    standby = pair.standby(copy, **FEEDBACK)
    with Proxy(standby.port) as name:
        run = pair.run(name)
        expected = pair.begin(run)
        pair.write("of the copy", copy)
        pair.write("of the source")
        position = run.plans and pair.primary.query("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        while copy.query("SELECT pg_current_wal_flush_lsn() <= %s::pg_lsn", (position,)) == [(True,)]:
            pair.do("SELECT pg_switch_wal()", "UPDATE visits SET note = note", server=copy)
        refused = pytest.raises(ExactnessError, match="does not replay the log of the source")
        with refused:
            run.snapshot()
        with refused:
            pair.run(log=standby).lock_and_record()
        # Only the first run has a slot.
        assert len(pair.slots(standby, copy)) == 1
        # The same run goes on with a standby of the source.
        name.target = pair.standby().port
        assert pair.end(run, expected)


@LONG
def test_a_promoted_standby_and_its_own_standby_are_refused(pair: Standbys) -> None:
    standby = pair.standby()
    pair.do("SELECT pg_promote()", server=standby)
    with pytest.raises(PreflightError, match="it is no standby: it was promoted"):
        pair.run(standby)
    with pytest.raises(PreflightError, match="it follows timeline 2, and the source is on timeline 1"):
        pair.run(pair.standby(standby))


class Pooler(Proxy):
    """Gives each transaction block of a session to a session of another server, with the same settings."""

    def __init__(self, server: PostgresServer, of_blocks: PostgresServer) -> None:
        self.blocks = 0
        self._other = of_blocks.port
        super().__init__(server.port, self._serve_session)

    def _serve_session(self, client: socket.socket, server: socket.socket) -> None:
        with socket.create_connection((self.host, self._other)) as other, client.makefile("rb") as messages:
            start_up = _message(messages)
            while len(start_up) == 8:  # a request for encryption
                client.sendall(b"N")
                start_up = _message(messages)
            answers = {one: one.makefile("rb") for one in (server, other)}
            for one in (other, server):
                one.sendall(start_up)
                greeting = _answer(answers[one])
            client.sendall(greeting)
            at, idle = server, True
            while True:
                request = _message(messages, 1)
                while request[:1] not in b"QX" and not request.endswith(_SYNC):
                    request += _message(messages, 1)
                if idle:
                    at = other if b"BEGIN" in request else server
                    self.blocks += at is other
                at.sendall(request)
                answer = _answer(answers[at])
                idle = answer.endswith(b"I")
                client.sendall(answer)


_SYNC, _READY = b"S\0\0\0\4", b"Z\0\0\0\5"


def _message(stream: BinaryIO, kind: int = 0) -> bytes:
    """The next message of PostgreSQL's protocol, after the byte that tells its kind."""
    head = stream.read(kind + 4)
    if len(head) < kind + 4:
        raise OSError("the connection is closed")
    return head + stream.read(int.from_bytes(head[kind:], "big") - 4)


def _answer(stream: BinaryIO) -> bytes:
    """The messages up to the one that says that the server is ready."""
    answer = message = b""
    while not message.startswith(_READY):
        answer += (message := _message(stream, 1))
    return answer


@LONG
def test_a_pooler_that_exchanges_the_server_between_transactions_is_refused(pair: Standbys) -> None:
    """The server that is asked for its position has replayed it, and the one that is read has not."""
    first, second = pair.standby(), pair.standby()
    pair.pause(second)
    pair.write("before")
    with Pooler(first, second) as pooler:
        run = pair.run(pooler)
        pair.begin(run)
        pair.write("after")
        with pytest.raises(ExactnessError, match="several processes answer the statements of one session"):
            run.snapshot()
        assert pooler.blocks


@LONG
@pytest.mark.parametrize("how", ["kill", "promote", "stop"])
def test_a_standby_that_goes_away_in_mid_read(how: str, pair: Standbys) -> None:
    """The other standby is read instead. It streams from the first one, or no longer gets any log."""
    first = pair.standby()
    second = pair.standby(first if how == "stop" else None)
    run = pair.run(first, second, chunk_rows=20, chunk_pause=0.3)
    expected = pair.begin(run)
    pair.write("after")
    pair.caught_up(first)
    pair.caught_up(second)
    reads = pair.snapshot(run)
    soon(lambda: any(map(pair.is_read, (first, second))), True)
    gone = first if how != "stop" and pair.is_read(first) else second
    if how == "promote":
        pair.do("SELECT pg_promote()", server=gone)
        pair.write("promoted", gone)
        with pytest.raises(ExactnessError, match="it is no standby: it was promoted"):
            reads.result()
        return
    gone.kill() if how == "kill" else gone.stop()
    pair.write("later")
    (read,) = pair.end(run, expected, reads).values()
    (left,) = {first, second} - {gone}
    assert read["address"] == f"{left.host}:{left.port}"


@LONG
def test_a_conflict_with_the_replay_ends_a_read_and_the_part_is_read_again(pair: Standbys) -> None:
    """Between the read of a chunk and the check of its table, the session has a lock that the replay needs."""
    standby = pair.standby(max_standby_streaming_delay="0", hot_standby_feedback="off")
    with Proxy(standby.port) as name:
        run = pair.run(name, chunk_rows=20)
        expected = pair.begin(run)
        statements = count()

        def conflict() -> None:
            if next(statements) < 30:
                pair.write("meanwhile")
                pair.do("BEGIN", "LOCK TABLE stock IN ACCESS EXCLUSIVE MODE", "COMMIT", "VACUUM stock")
                pair.caught_up(standby)

        name.meanwhile = conflict
        assert pair.end(run, expected)
    conflicts = "SELECT sum(confl_lock + confl_snapshot + confl_bufferpin) > 0 FROM pg_stat_database_conflicts"
    soon(lambda: standby.query(conflicts), [(True,)])


@LONG
@pytest.mark.parametrize("pair", VERSIONS, indirect=True)
@pytest.mark.parametrize("seed", seeds())
def test_random_writes_on_the_source_while_a_chain_of_standbys_is_read(seed: int, pair: Standbys) -> None:
    """A recovery to the position has the same rows. The second standby streams from the first; both lag."""
    first = pair.standby(max_standby_streaming_delay="1s", hot_standby_feedback="on")
    second = pair.standby(first, hot_standby_feedback="on")
    more = ("stock_2", "stock_3", "stock_4")
    for name in more:
        pair.do(f"CREATE TABLE {name} (LIKE stock INCLUDING ALL)", FULL.format(name), f"INSERT INTO {name} TABLE stock")
    directory = pair.stack.enter_context(throw_away("cdc-recovery-"))
    oracle = pair.stack.enter_context(PostgresRecovery(pair.primary, directory))
    # A name that leads to both in turn.
    read = (pair.stack.enter_context(Name(first, second)),) if seed % 2 else (first, second)
    # From PostgreSQL 16 on, the log is read from the standby of the standby.
    log = second if pair.primary.binaries.major >= 16 else None
    run = pair.run(*read, log=log, chunk_rows=30, chunk_pause=0.02, spool="auto" if seed % 3 else "off")
    done = threading.Event()

    def write(number: int) -> None:
        mine, moved = random.Random(seed * 100 + number), count()
        while not done.is_set():
            key, other = mine.randrange(2 * ROWS), mine.randrange(2 * ROWS)
            stock = mine.choice(("stock", *more))
            pair.do(
                mine.choice(
                    (
                        f"UPDATE {stock} SET note = 'w{number} {other}' WHERE id BETWEEN {key} AND {key + 5}",
                        f"INSERT INTO {stock} VALUES ({key}, 'r') ON CONFLICT (id) DO UPDATE SET note = '{other}'",
                        f"DELETE FROM {stock} WHERE id IN ({key}, {other})",
                        f"UPDATE {stock} SET id = {2 * ROWS + next(moved) * 3 + number} WHERE id = {key}",
                        f"INSERT INTO visits VALUES ({key}, 'v{number}')",
                        f"DELETE FROM visits WHERE id = {key}",
                        f"VACUUM {stock}",
                    )
                )
            )

    def lag() -> None:
        mine = random.Random(seed)
        while not done.wait(mine.random()):
            server = mine.choice((first, second))
            server.query("SELECT pg_wal_replay_pause()")
            done.wait(mine.random())
            server.query("SELECT pg_wal_replay_resume()")

    with ThreadPoolExecutor(4) as pool:
        acting = [pool.submit(write, number) for number in range(3)]
        try:
            position = run.lock_and_record()
            acting.append(pool.submit(lag))
            result = run.snapshot()
        finally:
            done.set()
        for one in acting:
            one.result()
    assert result["replicas"]
    run.extract_delta()
    tables = run.consolidate()["published"]
    oracle.advance_to(str(position))
    with oracle.connect() as connection:
        for name in ("stock", *more, "visits"):
            rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
            assert Counter(published(tables[f"public.{name}"])[1]) == Counter(rows), name
