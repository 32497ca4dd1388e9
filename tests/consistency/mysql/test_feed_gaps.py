"""Feeds that end at a schema change and begin anew. Plain Python replays all other feeds, which gives the next copy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ChangesMissing, PreflightError, SchemaChanged
from airflow_provider_cdc.lake import read_changes, read_cut, read_latest
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline
from tests.consistency.acting import DURING, act_during
from tests.consistency.mysql.test_changes import changes_of, copy_of
from tests.consistency.mysql.test_roll_forward_nights import Nights
from tests.consistency.replaying import Row, replayed, rows_of
from tests.seeds import some

KEYS = {"emptied": ["id"], "widened": ["id"], "steady": ["id"], "bag": list[str]()}


class Feeds(Nights):
    """Nights with changes, in one format."""

    format = "parquet"
    copies: dict[str, Counter[Row]]
    positions: list[str]

    @property
    def lake(self) -> str:
        return (self.folder / "lake").as_uri()

    def cut(self) -> Any:
        return read_cut(self.lake) if self.format == "iceberg" else None

    def name(self, table: str) -> str:
        return f"{self.schema}.{table}"

    def begun(self, **more: Any) -> Pipeline:
        run = self.night("auto", **{"changes": True, "on_feed_gap": "begin_anew", "format": self.format, **more})
        run.record()
        return run

    def publish(self, run: Pipeline, gaps: set[str]) -> None:
        """Publish, and compare the copies with the server, and with the replayed feeds of the tables without a gap."""
        found = run.finish()
        before = getattr(self, "copies", {})
        self.copies = {table: rows_of(copy_of(self.lake, self.name(table), self.cut())) for table in KEYS}
        self.positions = [*getattr(self, "positions", []), found["position"]]
        assert set(found["feed_gaps"]) == {self.name(table) for table in gaps}
        for table, key in KEYS.items():
            server = Counter(tuple(row) for row in self.mysql.query(f"SELECT * FROM {self.name(table)}"))
            assert self.copies[table] == server, table
            assert (found["changes"][self.name(table)] is None) == (table in gaps or not before), table
            if before and table not in gaps:
                changes = changes_of(self.lake, self.name(table), self.positions[-2], self.cut())
                assert replayed(before[table], key, changes) == self.copies[table], table

    def refused(self, table: str, since: str = "") -> str:
        with pytest.raises(ChangesMissing) as refusal:
            read_changes(self.lake, self.name(table), since, cut=self.cut())
        return str(refusal.value)

    def orders(self, table: str, since: str) -> list[int]:
        found: list[int] = changes_of(self.lake, self.name(table), since, self.cut())["order"].to_pylist()
        return found


@pytest.fixture
def feeds(mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path) -> Feeds:
    feeds = Feeds(mysql, spark, schema, tmp_path)
    feeds.do(
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("emptied", "widened", "steady")),
        "CREATE TABLE bag (v INT)",
        *(f"INSERT INTO {name} VALUES (1, 10), (2, 20), (3, 30)" for name in ("emptied", "widened", "steady")),
        "INSERT INTO bag VALUES (1), (1), (2)",
    )
    return feeds


def write(feeds: Feeds, number: int) -> None:
    feeds.do(
        *(
            statement
            for name in ("emptied", "widened", "steady")
            for statement in (
                f"INSERT INTO {name} (id, v) VALUES ({number}, 0), ({number + 1}, 1)",
                f"UPDATE {name} SET v = v + 1 WHERE id = {number}",
                f"DELETE FROM {name} WHERE id = {number + 1}",
            )
        ),
        f"INSERT INTO bag VALUES ({number}), ({number})",
        f"DELETE FROM bag WHERE v = {number} LIMIT 1",
    )


@pytest.mark.slow
@pytest.mark.parametrize("format", some("parquet", "iceberg", plain=1))
def test_feeds_end_at_schema_changes_and_begin_anew(
    format: str, feeds: Feeds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feeds.format = format
    feeds.publish(feeds.begun(), set())

    # Between two nights. A transaction is prepared before the ALTER TABLE, and committed after it.
    write(feeds, 200)
    prepared = "UPDATE steady SET v = v * 2 WHERE id = 1", "XA END 'x'", "XA PREPARE 'x'"
    feeds.do("SET xa_detach_on_prepare = ON", "XA START 'x'", *prepared)
    feeds.do("TRUNCATE emptied", "ALTER TABLE widened ADD COLUMN n INT DEFAULT 7", "FLUSH BINARY LOGS")
    feeds.do("XA COMMIT 'x'")
    write(feeds, 300)
    with pytest.raises(PreflightError, match=r"On\.feed_gap"):
        feeds.begun(on_feed_gap="fail")
    # A strict refresh reads nothing in full.
    with pytest.raises(PreflightError, match=r"emptied: its copy cannot be rolled forward: .*TRUNCATE"):
        feeds.night("changes", changes=True, on_feed_gap="begin_anew", format=format).preflight()
    run = feeds.begun()
    assert {plan.table.name for plan in run.plans if plan.base} == {"widened", "steady", "bag"}
    anew = {plan.table.name for plan in run.plans if "its changes begin anew at this copy" in plan.reason}
    assert anew == {"emptied", "widened"}
    feeds.publish(run, {"emptied", "widened"})
    said = capsys.readouterr().out
    for table, statement in (("emptied", "TRUNCATE"), ("widened", "ADD COLUMN n")):
        what = feeds.refused(table, feeds.positions[0])
        parts = feeds.name(table), f"anew at {feeds.positions[1]}", f"at {feeds.positions[0]}", statement, "binlog.0"
        for part in (*parts, "its position"):
            assert part in what, (table, part, what)
        assert f"{feeds.name(table)}: no changes lead from the last copy to this copy" in said
        assert statement in feeds.refused(table)
        assert read_changes(feeds.lake, feeds.name(table), feeds.positions[1], cut=feeds.cut()).files == ()
    # An attempt that was killed in between, or that comes again, completes the publication from the commit.
    Path(feeds.folder, "lake", feeds.name("emptied"), "_changes", run.run.uri.rpartition("/")[2], "_gap.json").unlink()
    assert "are not published" in feeds.refused("emptied", feeds.positions[0])
    run.consolidate()
    assert "TRUNCATE" in feeds.refused("emptied", feeds.positions[0])
    if format == "parquet":
        copy = read_latest(feeds.lake, feeds.name("emptied"))
        assert copy is not None
        assert [copy.feed_gap["from"], copy.feed_gap["to"]] == feeds.positions
        assert "TRUNCATE" in copy.feed_gap["reason"]

    # During a run, which moves: of a table with a feed, and of one that is read in full, again. Its rows are carried.
    feeds.do("TRUNCATE emptied")
    write(feeds, 400)
    run = feeds.begun()
    alter = (
        "ALTER TABLE steady ADD COLUMN m INT DEFAULT 8",
        "INSERT INTO steady VALUES (600, 1, 1)",
        "ALTER TABLE emptied ADD COLUMN m INT DEFAULT 9",
        "INSERT INTO bag VALUES (600)",
        "UPDATE widened SET n = 600 WHERE id = 1",
    )
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], lambda: feeds.do(*alter), patch)
        feeds.publish(run, {"steady", "emptied"})
    carried = [*Run.load(run.run).manifest.restarts[-1].carried]
    assert carried == [feeds.name("emptied")]
    for table, statement in (("emptied", "TRUNCATE"), ("steady", "")):
        what = feeds.refused(table, feeds.positions[1])
        for part in (feeds.name(table), f"anew at {feeds.positions[2]}", f"at {feeds.positions[1]}", statement):
            assert part in what, (table, part, what)

    # The older copies are removed, with their feeds and gaps. The numbers went on over the gaps, with one left out.
    write(feeds, 700)
    feeds.publish(feeds.begun(keep=1), set())
    # Changes and gaps since the first copy, 9 changes and a gap, a gap and 5 changes, and 5 changes and 4 changes.
    firsts = {"emptied": 1 + 2, "steady": 1 + 9 + 1, "widened": 1 + 1 + 5, "bag": 1 + 6 + 4}
    assert {table: feeds.orders(table, feeds.positions[2])[0] for table in KEYS} == firsts
    if format == "parquet":
        assert len([*Path(feeds.folder, "lake", feeds.name("emptied"), "_changes").iterdir()]) == 1
        assert f"the copy of run {run.run.uri.rpartition('/')[2]}" in feeds.refused("steady", feeds.positions[0])


@pytest.mark.slow
def test_numbers_after_a_gap_are_behind_those_in_the_lake_if_the_last_copy_has_no_changes(feeds: Feeds) -> None:
    """G4."""
    feeds.publish(feeds.begun(), set())
    write(feeds, 200)
    feeds.publish(feeds.begun(), set())
    before = feeds.orders("emptied", feeds.positions[0])
    write(feeds, 300)
    feeds.begun(changes=False, on_feed_gap="fail").finish()
    feeds.do("TRUNCATE emptied")
    run = feeds.begun()
    gap = run.finish()
    assert feeds.name("emptied") in gap["feed_gaps"]
    write(feeds, 400)
    feeds.begun().finish()
    assert feeds.orders("emptied", gap["position"])[0] >= before[-1] + 2


@pytest.mark.slow
def test_a_feed_stops_a_run_that_moves_unless_it_may_begin_anew(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds.publish(feeds.begun(), set())
    feeds.do("CREATE TABLE fresh (id INT PRIMARY KEY)")
    run = feeds.begun(on_feed_gap="fail")
    alter = "ALTER TABLE fresh ADD m INT", "ALTER TABLE steady ADD m INT"
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], lambda: feeds.do(*alter), patch)
        with pytest.raises(SchemaChanged, match="steady"):
            run.finish()


@pytest.mark.long
def test_numbers_never_repeat_where_runs_overlap_or_publish_no_changes(feeds: Feeds) -> None:
    """A gap may begin at an earlier copy than the last one, or at a copy without changes."""
    feeds.begun().finish()
    write(feeds, 200)
    other = feeds.begun()
    feeds.do("TRUNCATE emptied")
    late = feeds.begun()
    assert other.finish()["feed_gaps"] == {}
    # The other run has published the changes 1 to 4. This run was planned before.
    position = late.finish()["position"]
    write(feeds, 300)
    feeds.begun().finish()
    assert feeds.orders("emptied", position) == [6, 7, 8, 9]
    feeds.begun(changes=False).finish()
    write(feeds, 400)
    feeds.do("TRUNCATE emptied")
    position = feeds.begun().finish()["position"]
    write(feeds, 500)
    feeds.begun().finish()
    assert feeds.orders("emptied", position)[0] == 11
    # The changes 1 to 4 and again 6 to 9, 10 to 13, no changes, and 15 to 18. This feed does not begin anew.
    assert feeds.orders("steady", position) == [19, 20, 21, 22]
