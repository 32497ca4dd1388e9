"""Merged tables of real servers: random histories with rows that move between shards, and keys in several shards.

The truth is a SELECT of each shard at the moment of the run's position. It shares no code with the package.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import ORIGIN_IN_KEY, LakeOptions
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged, KeysCollide, PreflightError
from airflow_provider_cdc.jobs.verify.request import REQUEST, CopyAsked, VerifyRequest
from airflow_provider_cdc.jobs.verify.step import verify
from harness.pipeline import settings_of
from tests.conftest import PostgresFactory
from tests.consistency.acting import DURING, act_during, run_through
from tests.consistency.merge_matrix import MATRIX, Case
from tests.consistency.shards import MERGED, TABLES, Shards, Writers
from tests.seeds import seeds
from tests.sinks.catalogs import plain_catalog

MakeShards = Callable[..., Shards]


@pytest.fixture(params=["mysql", "postgres"])
def make_shards(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, postgres_factory: PostgresFactory
) -> MakeShards:
    """Creates the shards on a server of each kind."""

    def make(format: str = "parquet", **merging: object) -> Shards:
        if request.param == "mysql":
            server, schema = request.getfixturevalue("mysql"), request.getfixturevalue("schema")
            return Shards(server, spark, schema, tmp_path, format, **merging)
        return Shards(postgres_factory(), spark, "public", tmp_path, format, **merging)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "iceberg"])
@pytest.mark.parametrize("seed", seeds(0))
def test_rows_that_move_between_shards(make_shards: MakeShards, seed: int, format: str) -> None:
    shards = make_shards(format, origin_columns=True)
    rng = random.Random(seed)
    writers = Writers(shards, seed)
    writers.write(40)
    for night in range(3):
        if night:
            # PostgreSQL: the catalog shows that the shard was altered, but not how.
            shards.do(f"ALTER TABLE {shards.of('orders_3')} ALTER v SET DEFAULT {night}")
        run = shards.run("changes" if night else "full")
        run.record()
        assert {bool(plan.base) for plan in run.plans} == {night > 0}
        truth = shards.truth()
        writers.write(rng.randint(5, 25))
        run.snapshot()
        writers.write(rng.randint(0, 10))
        run.extract_delta()
        found = run.consolidate()
        assert shards.published(run) == truth, f"night {night}"
        assert list(found["published"]) == [MERGED]
        assert found["rows"] == {MERGED: truth.total()}
        of_shards = {name: sum(row[3] == name.partition(".")[2] for row in truth) for name in shards.names}
        assert found["shards"] == {MERGED: of_shards}
        writers.write(rng.randint(5, 25))


@pytest.mark.slow
def test_planted_collisions_are_found_on_the_first_copy_and_on_nights(make_shards: MakeShards) -> None:
    shards = make_shards()
    one, two, three = map(shards.of, ("orders_1", "orders_2", "orders_3"))
    shards.do(f"INSERT INTO {one} (k, tag, v) VALUES (1, 'a', 1), (2, 'A', 2), (3, 'b', 3)")
    # Keys that differ in case or in trailing spaces are different values, and so different rows of the copy.
    shards.do(f"INSERT INTO {two} (k, tag, v) VALUES (1, 'a', 5), (2, 'a', 6), (3, 'b ', 7), (9, 'x', 9)")
    run = shards.run()
    run.record()
    # A collision is one at the position, also if it is gone when the rows are read.
    shards.do(f"DELETE FROM {two} WHERE k = 1")
    with pytest.raises(KeysCollide) as raised:
        run.finish()
    assert "1 key is in more than one shard" in raised.value.message
    assert f"(k=1, tag='a') in {one} and {two}" in raised.value.message
    assert not run.target.folders("shop.orders")
    run = shards.run()
    run.record()
    # This one comes after the position.
    shards.do(f"INSERT INTO {three} (k, tag, v) VALUES (2, 'A', 0)")
    truth = [row for row in shards.truth() if row[3] != "orders_3"]
    run.finish()
    assert set(shards.published(run)) == {row[:3] for row in truth}
    # On a night: a row of one shard moves onto a row of another that no change has touched.
    shards.do(f"DELETE FROM {three}")
    shards.do(f"UPDATE {one} SET k = 9, tag = 'x' WHERE k = 3")
    run = shards.run("changes")
    run.record()
    shards.do(f"DELETE FROM {one} WHERE k = 9")
    with pytest.raises(KeysCollide, match=r"\(k=9, tag='x'\) in \S+orders_1 and \S+orders_2"):
        run.finish()
    # The other tables of a run that leaves tables out are published.
    shards.do(f"INSERT INTO {one} (k, tag, v) VALUES (9, 'x', 0)")
    shards.do(f"CREATE TABLE {shards.of('plain')} (k INT PRIMARY KEY)")
    run = shards.run("auto", on_table_error="skip")
    run.record()
    found = run.finish()
    assert list(found["published"]) == [shards.of("plain")]
    assert set(found["skipped"]) == {MERGED, *shards.names}
    assert "(k=9, tag='x')" in found["skipped"][MERGED]
    # With the origin in the key, both rows are there.
    run = shards.run("auto", merging={"origin_columns": True, "on_collision": ORIGIN_IN_KEY})
    run.record()
    truth_now = shards.truth()
    run.finish()
    assert shards.published(run) == truth_now
    assert {(9, "x", 0, "orders_1"), (9, "x", 9, "orders_2")} <= set(truth_now)


@pytest.mark.slow
def test_a_shard_that_joins_and_one_that_vanishes(make_shards: MakeShards, caplog: pytest.LogCaptureFixture) -> None:
    shards = make_shards(origin_columns=True)
    one, two, three = map(shards.of, ("orders_1", "orders_2", "orders_3"))
    shards.do(*(f"INSERT INTO {table} (k, tag, v) VALUES ({n}, 'a', 1)" for n, table in enumerate((one, two, three))))
    some = [f"{shards.schema}.orders_1", f"{shards.schema}.orders_2"]
    run = shards.run(patterns=some)
    run.record()
    run.finish()
    # A shard that joins is compared with rows that nobody touched.
    shards.do(f"INSERT INTO {three} (k, tag, v) VALUES (0, 'a', 1)")
    run = shards.run("auto")
    run.record()
    assert [bool(plan.base) for plan in run.plans] == [True, True, False]
    with pytest.raises(KeysCollide, match=r"\(k=0, tag='a'\) in \S+orders_1 and \S+orders_3"):
        run.finish()
    shards.do(f"DELETE FROM {three} WHERE k = 0")
    run = shards.run("auto")
    run.record()
    run.finish()
    assert shards.published(run) == shards.truth()
    with pytest.raises(PreflightError) as raised:
        shards.run("auto", patterns=some).record()
    assert f"also has the rows of {three}" in str(raised.value)
    assert f"its shards are {one}, {two}" in str(raised.value)
    run = shards.run("auto", patterns=some, merging={"vanished_shards": [three]})
    run.record()
    assert {bool(plan.base) for plan in run.plans} == {True}
    run.finish()
    assert shards.published(run) == shards.truth() - type(shards.truth())({(2, "a", 1, "orders_3"): 1})
    # A confirmation that is no longer needed would hide that the shard vanishes again.
    assert "is in Merge.vanished_shards" not in caplog.text
    shards.run("auto", patterns=some, merging={"vanished_shards": [one, three]}).preflight()
    assert f"{one} is in Merge.vanished_shards, but it is copied" in caplog.text


@pytest.mark.slow
def test_a_table_of_its_own_does_not_replace_a_merged_table(make_shards: MakeShards) -> None:
    shards = make_shards()
    run = shards.run()
    run.record()
    run.finish()
    shards.do("CREATE SCHEMA shop")
    try:
        shards.do("CREATE TABLE shop.orders (k INT PRIMARY KEY)")
        with pytest.raises(PreflightError, match="the target has a merged table with this name"):
            shards.run(patterns=["shop.orders"], merging={"merge": None}).record()
        # The other way around, too.
        own = shards.run(patterns=["shop.orders"], merging={"merge": None}, target="other")
        own.record()
        own.finish()
        with pytest.raises(PreflightError, match=r"also has the rows of shop\.orders"):
            shards.run(target="other").record()
    finally:
        shards.do("DROP TABLE shop.orders", "DROP SCHEMA shop")


@pytest.mark.long
@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.option.replace("`", ""))
def test_each_option(make_shards: MakeShards, case: Case) -> None:
    shards = make_shards(case.format, origin_columns=True)
    if shards.kind not in case.kinds:
        pytest.skip("the option is not for this kind of source")
    identity = "DEFAULT" if case.options.get("consistency") == "again" else "FULL"
    if shards.kind == "postgres":
        shards.do(*(f"ALTER TABLE {shards.of(name)} REPLICA IDENTITY {identity}" for name in TABLES))
    options = case.options_for(shards.schema)
    writers = Writers(shards, 5)
    writers.write(30)
    for night in range(3):
        run = shards.run(**{"refresh": "auto" if night else "full", **options})
        if case.refused:
            with pytest.raises(PreflightError, match=case.refused):
                run.record()
            return
        run.record()
        at_position = shards.truth()
        if run.plans[0].at_upper:
            run.snapshot()
            at_position = shards.truth()
        writers.write(10)
        run.finish()
        truth = Counter(seen for row in at_position.elements() if (seen := case.seen(row)) is not None)
        assert shards.published(run) == truth, f"night {night}"
        assert night == 0 or all(plan.base for plan in run.plans)
        if case.options.get("keep"):
            kept = [name for name in run.target.folders(MERGED) if "snapshot=" in name]
            assert [name.rpartition("=")[2] for name in kept] == [run.run.uri.rpartition("/")[2]]
        writers.write(10)


@pytest.mark.slow
def test_a_shard_that_is_altered_during_the_run(make_shards: MakeShards) -> None:
    shards = make_shards(origin_columns=True)
    writers = Writers(shards, 3)
    writers.write(20)
    two = shards.of("orders_2")
    null = "MODIFY v INT NULL" if shards.kind == "mysql" else "ALTER v DROP NOT NULL"

    def fits() -> None:
        shards.do(f"ALTER TABLE {two} {null}")
        shards.do(f"INSERT INTO {two} (k, tag, v) VALUES (99, 'new', NULL)")

    run = shards.run()
    run.record()
    run_through(run, "before the read", fits)
    run.consolidate()
    assert (99, "new", None, "orders_2") in shards.truth()
    assert shards.published(run) == shards.truth()
    shards.do(f"CREATE TABLE {shards.of('plain')} (k INT PRIMARY KEY)")
    run = shards.run(on_table_error="skip")
    run.record()
    run_through(run, "before the read", lambda: shards.do(f"ALTER TABLE {two} ADD more INT"))
    found = run.consolidate()
    assert list(found["published"]) == [shards.of("plain")]
    assert set(found["skipped"]) == {MERGED, *shards.names}
    assert f"its shard {two}: it no longer fits into the merged table {MERGED}" in found["skipped"][MERGED]
    assert "its column more is not in the merged table" in found["skipped"][MERGED]


@pytest.mark.slow
def test_a_shard_that_is_read_again_has_the_iceberg_columns_of_the_others(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program renames a column of the Iceberg table meanwhile. With another field id in some of the files, the
    column would be null in the rows of the other shards."""
    shards = make_shards("iceberg")
    Writers(shards, 3).write(20)
    run = shards.run()
    run.record()

    def act() -> None:
        with plain_catalog(run.target).load_table(tuple(MERGED.split("."))).update_schema() as update:
            update.rename_column("v", "renamed")
        shards.do(f"TRUNCATE TABLE {shards.of('orders_1')}")
        shards.do(f"INSERT INTO {shards.of('orders_1')} (k, tag, v) VALUES (99, 'new', 5)")

    act_during(run, DURING[0], act, monkeypatch)
    run.finish()
    assert [len(restart.tables) for restart in Run.load(run.run).manifest.restarts] == [1]
    assert shards.published(run) == Counter(row[:3] for row in shards.truth().elements())


@pytest.mark.slow
def test_a_shard_that_joins_has_the_iceberg_columns_of_the_others(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program replaces a column of the Iceberg table. If the new shard was prepared by itself, it would have
    other field ids, or be left out alone, because another table is left out. The run also reads it again."""
    shards = make_shards("iceberg")
    writers = Writers(shards, 3)
    writers.write(20)
    shards.do(f"CREATE TABLE {shards.of('plain')} (id INT PRIMARY KEY, v INT)")
    first = shards.run()
    first.record()
    first.finish()
    with plain_catalog(first.target).load_table(tuple(MERGED.split("."))).update_schema(True) as update:
        update.delete_column("v").add_column("v", StringType())
    # The Iceberg column of this table cannot have texts.
    shards.do(f"ALTER TABLE {shards.of('plain')} {'MODIFY v' if shards.kind == 'mysql' else 'ALTER v TYPE'} TEXT")
    like = "LIKE {}" if shards.kind == "mysql" else "(LIKE {} INCLUDING ALL)"
    shards.do(f"CREATE TABLE {shards.of('orders_0')} {like.format(shards.of('orders_1'))}")
    shards.do(f"INSERT INTO {shards.of('orders_0')} (k, tag, v) VALUES (99, 'new', 5)")
    writers.write(5)
    run = shards.run("auto", on_table_error="skip")
    run.record()
    assert {plan.table.name for plan in run.plans if plan.base} == {*TABLES}
    again = f"TRUNCATE TABLE {shards.of('orders_0')}", f"INSERT INTO {shards.of('orders_0')} VALUES (98, 'b', 6)"
    act_during(run, DURING[0], lambda: shards.do(*again), monkeypatch)
    run.finish()
    assert [len(restart.tables) for restart in Run.load(run.run).manifest.restarts] == [1]
    assert run.found["consolidate"]["skipped"].keys() == {shards.of("plain")}
    assert shards.published(run) == Counter([*(row[:3] for row in shards.truth().elements()), (98, "b", 6)])


@pytest.mark.slow
def test_a_damaged_file_is_of_one_shard(make_shards: MakeShards) -> None:
    shards = make_shards(origin_columns=True)
    one, two = map(shards.of, ("orders_1", "orders_2"))
    shards.do(*(f"INSERT INTO {table} (k, tag, v) VALUES ({n}, 'a', 1)" for n, table in enumerate((one, two))))
    run = shards.run()
    run.record()
    run.finish()
    folder = Storage(run.found["consolidate"]["published"][MERGED])
    (file,) = decision_of(Run.load(run.run)).files[two]
    path = Path(folder.path(file.base_name))
    path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR!", 1))
    shards.do(f"UPDATE {one} SET v = 2", f"UPDATE {two} SET v = 2")
    night = shards.run("auto")
    night.record()
    with pytest.raises(FileDamaged):
        night.finish()
    night = shards.run("auto")
    night.record()
    assert [bool(plan.base) for plan in night.plans] == [True, False, True]
    night.finish()
    assert shards.published(night) == shards.truth()


@pytest.mark.slow
def test_a_past_position_partitions_and_verification(make_shards: MakeShards, spark: SparkSession) -> None:
    shards = make_shards("iceberg", origin_columns=True)
    writers = Writers(shards, 4)
    writers.write(20)
    lake = LakeOptions("iceberg", partition_by={MERGED: ["bucket(4, k)"]}, sort_by={MERGED: ["k"]})
    first = shards.run(lake=lake)
    first.record()
    first.finish()
    truth, position = shards.truth(), shards.position()
    writers.write(20)
    past = shards.run("auto", lake=lake, as_of=position)
    assert past.record() == position
    past.finish()
    assert shards.published(past) == truth
    night = shards.run("auto", lake=lake)
    night.record()
    now = shards.truth()
    night.finish()
    assert shards.published(night) == now
    asked = CopyAsked(MERGED)
    for what, outcome in (("files", "same"), ("source", "not verified")):
        request = VerifyRequest(what, f"verify-{what}", (asked,), night.target.uri, lake=lake)
        folder = night.target.folder("_verify", what)
        records.write(folder, REQUEST, request)
        result = verify(spark, folder, settings_of(shards.server))
        assert [one.outcome for one in result.tables] == [outcome]
    assert "merged from several tables" in result.tables[0].why
