"""Merged tables of several real servers: random histories, collisions across servers, and wrong unions.

The truth is a SELECT of each shard at the moment of its source's position. It shares no code with the package.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import ORIGIN_IN_KEY
from airflow_provider_cdc.core.shards.union import UNIONS
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import (
    ConfigurationError,
    KeysCollide,
    ManifestError,
    PreflightError,
    PublishIncomplete,
    UnionRefused,
)
from airflow_provider_cdc.jobs.shards import unite
from airflow_provider_cdc.jobs.shards.members import union_copy
from airflow_provider_cdc.jobs.verify.request import FILES, REQUEST, SOURCE, CopyAsked
from airflow_provider_cdc.jobs.verify.request import VerifyRequest as VerifyRequest
from airflow_provider_cdc.jobs.verify.step import verify
from airflow_provider_cdc.lake import open_dataset, read_latest
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.parquet import ParquetSink
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.conftest import PostgresFactory
from tests.consistency.fleet import Fleet, FleetWriters, MakeFleet, colliding, position_of
from tests.consistency.shards import MERGED, Row
from tests.seeds import seeds


def check_histories(fleet: Fleet, seed: int, nights: int) -> tuple[int, int]:
    """Copy and unite random histories, and compare each union with the truth. Return the numbers of unions with and
    without collisions."""
    rng, writers = random.Random(seed), FleetWriters(fleet, seed)
    writers.write(40, finish=True)
    outcomes: Counter[bool] = Counter()
    copied: Counter[tuple[object, ...]] = Counter()
    for night in range(nights):
        begun = {}
        for source in fleet.parts:
            begun[source] = fleet.begin(source)
            assert {bool(plan.base) for plan in begun[source][0].plans} == {night > 0}
            writers.write(rng.randint(0, 8))
        for run, _ in begun.values():
            run.finish()
            writers.write(rng.randint(0, 4))
        truth = sum((rows for _, rows in begun.values()), Counter())
        runs = {source: run for source, (run, _) in begun.items()}
        if keys := colliding(truth):
            with pytest.raises(KeysCollide) as raised:
                fleet.unite(runs)
            assert raised.value.message.startswith(f"{len(keys)} key")
            assert any(f"(k={k}, tag='{tag}') in " in raised.value.message for k, tag in keys)
        else:
            found = fleet.unite(runs)
            copied = truth
            positions = {source: position_of(run) for source, run in runs.items()}
            assert found.positions == positions
            assert {one["source"]: one["position"] for one in fleet.latest()["positions"]} == positions
        outcomes[bool(keys)] += 1
        if copied:
            assert fleet.published() == copied, f"night {night}"
        writers.write(rng.randint(5, 20), finish=rng.random() < 0.5)
    return outcomes[True], outcomes[False]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1))
def test_rows_that_move_between_servers(fleet: MakeFleet, seed: int) -> None:
    collided, united = check_histories(fleet(), seed, 4)
    assert seed != 1 or (collided, united) == (2, 2)


@pytest.mark.long
def test_rows_that_move_between_postgresql_servers(
    postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    servers = {"eu": postgres_factory(), "us": postgres_factory()}
    check_histories(Fleet(servers, spark, "public", tmp_path), 2, 4)


@pytest.mark.slow
def test_planted_collisions_across_servers(fleet: MakeFleet, spark: SparkSession) -> None:
    two = fleet(on_collision="fail")
    eu, us = two.parts.values()
    eu.do(f"INSERT INTO {eu.of('orders_1')} (k, tag, v) VALUES (1, 'a', 1), (2, 'A', 2), (3, 'b', 3)")
    us.do(f"INSERT INTO {us.of('orders_2')} (k, tag, v) VALUES (1, 'a', 5), (2, 'a', 6), (9, 'x', 9)")
    with pytest.raises(KeysCollide) as raised:
        two.night()
    assert "1 key is in more than one shard at eu " in raised.value.message
    assert f"(k=1, tag='a') in eu:{eu.of('orders_1')} and us:{us.of('orders_2')}" in raised.value.message
    assert not two.target.folders(MERGED)
    us.do(f"DELETE FROM {us.of('orders_2')} WHERE k = 1")
    found, truth = two.night()
    assert two.published() == truth
    assert found.rows == {MERGED: truth.total()}
    first = two.latest()
    # On a night: a row of one server moves onto a row of the other that no change has touched.
    eu.do(f"UPDATE {eu.of('orders_1')} SET k = 9, tag = 'x' WHERE k = 3")
    with pytest.raises(KeysCollide, match=r"\(k=9, tag='x'\) in eu:\S+orders_1 and us:\S+orders_2"):
        two.night()
    assert two.latest() == first
    # The next night finds it again, although no change has touched either row since the last one.
    with pytest.raises(KeysCollide, match=r"\(k=9, tag='x'\)"):
        two.night()
    us.do(f"DELETE FROM {us.of('orders_2')} WHERE k = 9")
    found, truth = two.night(keep=1)
    assert two.published() == truth
    assert found.removed == (first["path"],)
    assert two.snapshots() == [two.latest()["run_id"]]
    copy = read_latest(two.target.uri, MERGED)
    assert copy is not None
    assert open_dataset(copy).count_rows() == truth.total()
    assert (copy.position, [one["source"] for one in copy.positions]) == ("", ["eu", "us"])
    for what, outcome in ((FILES, "same"), (SOURCE, "not verified")):
        request = VerifyRequest(what, f"verify-{what}", (CopyAsked(MERGED),), two.target.uri)
        folder = two.target.folder("_verify", what)
        records.write(folder, REQUEST, request)
        (result,) = verify(spark, folder, settings_of(eu.server)).tables
        assert result.outcome == outcome, result.why
        assert what != FILES or result.digests[0]


@pytest.mark.long
def test_wrong_unions_are_refused(fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    two = fleet(on_collision=ORIGIN_IN_KEY)
    eu, us = two.parts.values()
    # Both rows are there, because the origin is in the key.
    for shards in (eu, us):
        shards.do(f"INSERT INTO {shards.of('orders_1')} (k, tag, v) VALUES (1, 'a', 1)")
    (old, _), (other, _) = two.begin("eu"), two.begin("us")
    old.finish()
    with pytest.raises(UnionRefused, match=r"us: the run \S+ is not published"):
        two.unite({"eu": old, "us": other})
    other.finish()
    with pytest.raises(UnionRefused, match="is not the folder of a run of us"):
        two.unite({"eu": old, "us": old})
    # A try that dies while it publishes is completed by the next one, which has the same files, and no others.
    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "_announce", _dying)
        with pytest.raises(PublishIncomplete):
            two.unite({"eu": old, "us": other})
    (new, truth_eu), _ = two.begin("eu"), None
    new.finish()
    with pytest.raises(ManifestError, match="already has a commit, which unites other runs"):
        two.unite_again({"eu": new, "us": other})
    assert two.unite_again({"eu": old, "us": other}).positions["eu"] == position_of(old)
    done = two.latest()
    # A late union of an earlier run does not begin.
    with pytest.raises(UnionRefused, match=r"eu: the latest copy of its shards is that of run"):
        two.unite({"eu": old, "us": other})
    assert two.latest() == done
    result = two.unite({"eu": new, "us": other})
    assert result.latest == {MERGED: True}
    assert sum(two.published().values()) == truth_eu.total() + 1 == 2
    # A source that is not there stops the table, until somebody confirms it.
    (alone, _) = two.begin("eu")
    alone.finish()
    with pytest.raises(UnionRefused, match=r"also has the rows of us:\S+orders_1, us:\S+orders_2, us:\S+orders_3"):
        two.unite({"eu": alone})
    two.unite({"eu": alone}, vanished=("us",))
    assert {row[4] for row in two.published()} == {"eu"}
    # A source that joins, with other columns.
    us.do(*(f"ALTER TABLE {us.of(name)} ADD more INT" for name in ("orders_1", "orders_2", "orders_3")))
    with pytest.raises(UnionRefused, match=r"us: its column more is not in the merged table \(compared with eu\)"):
        two.night()
    us.do(*(f"ALTER TABLE {us.of(name)} DROP more" for name in ("orders_1", "orders_2", "orders_3")))
    _, truth = two.night()
    assert two.published() == truth


@pytest.mark.long
def test_interrupted_and_late_tries(fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    two = fleet()
    eu, _ = two.parts.values()

    def night() -> dict[str, Pipeline]:
        eu.do(f"INSERT INTO {eu.of('orders_1')} (k, tag, v) SELECT COUNT(*), 'a', 1 FROM {eu.of('orders_1')}")
        runs = {source: two.begin(source, keep=1)[0] for source in two.parts}
        for run in runs.values():
            run.finish()
        return runs

    # Two drivers of one try: a driver that Airflow lost goes on. All shards of a source are empty.
    first = night()
    two.unions += 1
    with ThreadPoolExecutor(2) as drivers:
        results = list(drivers.map(lambda _: two.unite_again(first), range(2)))
    assert [result.published for result in results] == [results[0].published] * 2
    assert two.published() == Counter({(0, "a", 1, "orders_1", "eu"): 1})
    # A driver stalls before it publishes. Meanwhile, the next night is published, and the files that it needs are gone.
    second = night()
    publish = ParquetSink.publish
    done = []

    def stalled(sink: ParquetSink, publication: Publication) -> Any:
        monkeypatch.setattr(ParquetSink, "publish", publish)
        late, two.unions = two.unions, 7
        done.append(two.unite(night(), keep=2))
        two.unions = late
        return publish(sink, publication)

    monkeypatch.setattr(ParquetSink, "publish", stalled)
    with pytest.raises(UnionRefused, match=r"eu: the newer run \S+ has replaced the files of"):
        two.unite(second)
    assert two.latest()["path"] == done[0].published[MERGED]
    assert two.published().total() == 3
    # It is not repeated.
    with pytest.raises(UnionRefused, match=r"eu: the newer run \S+ has replaced the files of"):
        two.unite_again(second)
    # A driver stalls before its commit. Meanwhile, the next night is copied, and the files that it needs are gone.
    third, newest = night(), []

    def overtaken(*arguments: Any) -> Any:
        newest.append(night())
        return union_copy(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(unite, "union_copy", overtaken)
        with pytest.raises(UnionRefused, match=r"eu: the records of the run \S+ are gone, because of a newer run"):
            two.unite(third)
    # The next night is complete.
    two.unions = 8
    result = two.unite(newest[0], keep=1)
    assert two.published().total() == 5
    assert two.snapshots() == [two.latest()["run_id"]]
    # One of them is what the stalled driver left.
    assert len(result.removed) == 3
    # A try that comes much later.
    two.unions = 2
    with pytest.raises(UnionRefused, match=r"eu: the newer run \S+ has replaced the files of"):
        two.unite_again(second)
    # Some days later, the records of unions without copies are removed.
    for file in Path(two.target.folder(UNIONS).path()).rglob("*.json"):
        os.utime(file, times=(1, 1))
    two.unions = 9
    two.unite(night(), keep=2)
    assert [name.rpartition("/")[2] for name in two.target.folders(UNIONS)] == two.snapshots()
    assert len(two.snapshots()) == 2
    two.unions = 2
    with pytest.raises(UnionRefused, match=r"the records of the run \S+ are gone"):
        two.unite_again(second)
    assert two.published().total() == 6


@pytest.mark.long
def test_a_late_union_of_kept_files_is_a_past_copy(fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    two = fleet()
    eu, _ = two.parts.values()
    old = {source: two.begin(source)[0] for source in two.parts}
    for run in old.values():
        run.finish()
    publish, results = ParquetSink.publish, []

    def stalled(sink: ParquetSink, publication: Publication) -> Any:
        monkeypatch.setattr(ParquetSink, "publish", publish)
        eu.do(f"INSERT INTO {eu.of('orders_1')} (k, tag, v) VALUES (1, 'a', 1)")
        results.append(two.night()[0])
        return publish(sink, publication)

    monkeypatch.setattr(ParquetSink, "publish", stalled)
    late = two.unite(old)
    assert (late.latest, results[0].latest) == ({MERGED: False}, {MERGED: True})
    assert two.latest()["path"] == results[0].published[MERGED]
    assert two.published().total() == 1


@pytest.mark.long
def test_copies_of_one_source_and_runs_for_other_targets(fleet: MakeFleet) -> None:
    two = fleet()
    eu, us = two.parts.values()
    alone = eu.run(target=two.target.path(), source_conn_id="eu")
    alone.record()
    alone.finish()
    with pytest.raises(UnionRefused, match="the target has copies of one source with this name: kind mysql"):
        two.night()
    Path(two.target.path(f"{MERGED}/_latest.json")).unlink()
    two.night()
    (other, _) = two.begin("us")
    other.finish()
    with pytest.raises(UnionRefused, match="is not the folder of a run of eu for this target"):
        two.unite({"eu": alone, "us": other})
    # A shard that joins one source is compared with those of all others.
    eu.do(f"CREATE TABLE {eu.of('orders_4')} LIKE {eu.of('orders_1')}")
    for shards, name in ((eu, "orders_4"), (us, "orders_2")):
        shards.do(f"INSERT INTO {shards.of(name)} (k, tag, v) VALUES (1, 'a', 1)")
    with pytest.raises(KeysCollide, match=r"\(k=1, tag='a'\) in eu:\S+orders_4 and us:\S+orders_2"):
        two.night()
    eu.do(f"DELETE FROM {eu.of('orders_4')}")
    two.night()
    # A run of one source does not replace the merged table, even if its shards are confirmed to be gone.
    confirmed = {"vanished_shards": [shard["shard"] for shard in two.latest()["shards"]]}
    with pytest.raises(PreflightError, match="also has the rows of eu:"):
        eu.run(target=two.target.path(), source_conn_id="eu").record()
    alone = eu.run(target=two.target.path(), source_conn_id="eu", merging=confirmed)
    alone.record()
    with pytest.raises(ConfigurationError, match="this folder has copies of another source"):
        alone.finish()


def _dying(*_: object) -> bool:
    raise PublishIncomplete("died")


@pytest.mark.long
def test_one_time_on_all_servers(fleet: MakeFleet) -> None:
    two = fleet()
    writers = FleetWriters(two, 5)
    writers.write(30, finish=True)
    truth: Counter[Row] = Counter()
    for source, shards in two.parts.items():
        truth.update({(*row, source): count for row, count in shards.truth().items()})
    at = datetime.now(UTC).isoformat()
    writers.write(30, finish=True)
    runs = {source: two.begin(source, as_of=at)[0] for source in two.parts}
    for run in runs.values():
        run.finish()
    assert two.unite(runs).in_order is False
    assert two.published() == truth
    assert two.latest()["as_of"] == at


@pytest.mark.long
def test_sources_that_cannot_be_united(
    mysql: MysqlServer, schema: str, postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    postgres = postgres_factory()
    postgres.query(f"CREATE SCHEMA {schema}")
    mixed = Fleet({"eu": mysql, "us": postgres}, spark, schema, tmp_path)
    with pytest.raises(UnionRefused, match="of different kinds"):
        mixed.night()
