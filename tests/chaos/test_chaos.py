"""Chaos tests: under any fault at any moment, the copy is exact, or the run fails and publishes nothing.

Each seed draws a database, a history of writes, and a schedule of faults (`faults.KINDS`) that hit the tries of the
steps at random instants. Tries are repeated as Airflow repeats them: after a transient error, and after a kill. Tries
that are presumed dead go on beside their successors. At the end, an independent oracle checks what readers see: every
file in the folder of the copy, including files that other tries wrote. Some runs are the second runs of their lakes,
and roll the first copies forward. If such a run fails, the first copies must be unchanged.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from harness.pipeline import Pipeline, published
from harness.proxy import Proxy
from harness.s3_server import BUCKET
from tests.chaos import faults
from tests.chaos.conftest import BIT, DREW, kind_of, on_store, rolls
from tests.chaos.driver import Outcome
from tests.chaos.faults import STEPS
from tests.chaos.fleet import Fleet
from tests.chaos.lakes import Disk, Store
from tests.chaos.tries import Chaos
from tests.chaos.worlds import Worlds
from tests.seeds import seeds
from tests.soon import soon

SECOND = "20260102T000000Z-00000000"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", seeds())
def test_the_copy_is_exact_or_the_run_has_failed(
    seed: int,
    worlds: Worlds,
    lake_store: Store,
    fleet: Fleet,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(seed)
    world = worlds[kind_of(seed)]
    schedule = faults.draw(chance, on_store=on_store(seed))
    for fault in schedule:
        record_property(DREW, fault.kind)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    tables = world.create(schema, seed, chance.choice([40, 150]))
    folder, small = tmp_path, None
    if any(fault.kind == "no_space" for fault in schedule) and (small := request.getfixturevalue("small")):
        folder = small.folder
    lake: Disk | Store = Disk(folder, small)
    target = folder.as_uri()
    if on_store(seed):
        lake, target = lake_store, f"s3://{BUCKET}/{schema}"
        for name, value in lake_store.own_environment.items():
            monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(world.port))
        settings = world.settings(proxy.port)
        consistency = chance.choice(
            ["auto", "auto", "lock"] if world.kind == "mysql" else ["auto", "again", "exported"]
        )
        options: dict[str, Any] = {
            "consistency": consistency,
            "chunk_rows": chance.choice([15, 60]),
            "chunk_pause": chance.choice([0.0, 0.02]),
        }
        # The steps run in separate processes.
        rolling = world.rolling if rolls(seed) else {}
        run = Pipeline(None, settings, target, tables, **options, **{**rolling, "refresh": "full"})
        stack.enter_context(world.writing(schema, seed))
        time.sleep(0.2)
        initial = run.record()
        asked = {"run_uri": run.run.uri, "settings": asdict(settings)}
        last = ""
        if rolling:
            first = Chaos(world, proxy, lake, fleet, asked, [])
            assert [first.step(step).how for step in STEPS] == ["done"] * len(STEPS), first.story
            last = initial
            run = Pipeline(None, settings, target, tables, run_id=SECOND, **options, **rolling)
            initial = run.record()
            asked |= {"run_uri": run.run.uri}
        chaos = Chaos(world, proxy, lake, fleet, asked, schedule)
        outcome = Outcome("done")
        for step in STEPS:
            outcome = chaos.step(step)
            if outcome.how != "done":
                break
        chaos.story += [f"late: {late.how} {late.said[:200]}" for late in fleet.settle()]
        if outcome.how != "done":
            run.release()
    for kind in chaos.bit:
        record_property(BIT, kind)
    way = "rolled forward" if last else consistency
    story = f"seed {seed}, {world.kind}, {way}: " + "; ".join(chaos.story)
    print(story)
    heads = {name: f"{name}/_latest.json" for name in tables}
    copy = Storage(target)
    if outcome.how == "done" or last:
        position = initial if outcome.how == "done" else last
        for name, head in heads.items():
            said = copy.read_json(head)
            columns, rows = published(said["path"])
            assert len(rows) == said["rows"], f"{story}: {name} has {len(rows)} rows, said to be {said['rows']}"
            assert said["position"] == position or consistency == "again", story
            difference = world.differences(name, said["position"], columns, rows)
            assert not difference, f"{story}: {difference}"
    if outcome.how != "done":
        # Only a server that crashed may make a run fail for good.
        assert any(fault.kind == "source_crash" for fault in schedule), story
        assert outcome.how == "terminal", story
        assert last or not any(copy.exists(head) for head in heads.values()), story
    soon(lambda: (story, world.left_behind()), (story, []))
