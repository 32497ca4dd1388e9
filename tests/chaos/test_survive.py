"""Chaos with schema changes: tables are altered, log is purged, slots are lost, and tries are killed, at random.

Each seed draws a database, a history of writes, acts of others on the source (`acts`), and a schedule of faults. After
the retries, every copy has exactly the rows and the columns of the table at the position of the run, which may have
moved. Or the run failed for a reason that one of the acts explains: then nothing of it is published, and nothing is
left of it on the server, in the lake and in the folder of runs. A run that failed begins anew if an operator clears its
tasks, and is then exact.
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

from airflow_provider_cdc.cleaning.cleaner import Cleaner
from airflow_provider_cdc.core.liveness import DagRunNames, DagRunState, note_dag_run
from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime.step import sink_of
from harness.pipeline import Pipeline, published
from harness.proxy import Proxy
from tests.chaos import faults, iceberg
from tests.chaos.acts import BEFORE, Acting, draw_acts
from tests.chaos.conftest import BIT, DREW, kind_of
from tests.chaos.driver import Outcome
from tests.chaos.faults import STEPS
from tests.chaos.fleet import Fleet
from tests.chaos.lakes import Disk
from tests.chaos.tries import Chaos
from tests.chaos.worlds import World, Worlds
from tests.seeds import seeds
from tests.soon import soon

FIRST, SECOND = "20260101T000000Z-00000000", "20260102T000000Z-00000000"
SPOOLER = "airflow_provider_cdc.jobs.spool"
CONSISTENCIES = {"mysql": ["auto", "auto", "lock"], "postgres": ["auto", "auto", "exported", "again"]}
PUBLISHED, MOVED = "(published)", "(position moved)"
PACES: dict[str, float] = {
    f"{SPOOLER}.POLL_SECONDS": 0.3,
    f"{SPOOLER}.PIECE_BYTES": 1,
    "airflow_provider_cdc.jobs.runtime.source_watch.WATCH_SECONDS": 0.5,
}
"""A run of seconds does what otherwise only a run of hours does."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Lake:
    """What readers see, and what the runs keep."""

    def __init__(self, folder: Path, world: World, tables: list[str], format: str) -> None:
        self._iceberg = format == "iceberg"
        self._folder = folder
        self._world = world
        self._tables = tables

    def heads(self) -> dict[str, Any]:
        if self._iceberg:
            return iceberg.heads(self._folder, self._tables)
        copy = Storage(self._folder.as_uri())
        names = {name: f"{name}/_latest.json" for name in self._tables}
        return {name: copy.read_json(head) for name, head in names.items() if copy.exists(head)}

    def check(self, tables: list[str], run_id: str, story: str) -> str:
        """Compare the copies of a run with the tables at its position; return the position."""
        heads = self.heads()
        assert {name for name, said in heads.items() if said["run_id"] == run_id} == {*tables}, story
        positions = {heads[name]["position"] for name in tables}
        assert len(positions) == 1, f"{story}: {positions}"
        position = str(positions.pop())
        for name in tables:
            columns, rows = (
                iceberg.rows(self._folder, name, run_id) if self._iceberg else published(heads[name]["path"])
            )
            assert len(rows) == heads[name]["rows"], f"{story}: {name} has {len(rows)} rows"
            difference = self._world.differences(name, position, columns, rows)
            assert not difference, f"{story}: {difference}"
        return position

    def clean(self, run: Pipeline) -> list[str]:
        """Remove what ended runs left, as an operator does, and return what is left of ``run``."""
        lake = Storage(self._folder.as_uri())
        ended = DagRunState(True, True, "has ended")
        Cleaner(lake, run.run.parent(), run.source, "", sink_of, lambda names: ended, days=0).clean(dry_run=False)
        name = Path(run.run.uri).name
        return sorted(
            str(path.relative_to(self._folder))
            for path in self._folder.rglob("*")
            if name in path.name or (path.is_file() and name in path.parts)
        )


@pytest.mark.parametrize("seed", seeds())
def test_altered_and_purged_sources_give_exact_copies_or_none(
    seed: int,
    worlds: Worlds,
    fleet: Fleet,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(f"{seed}/survive")
    world = worlds[kind_of(seed)]
    rolling = {**world.rolling, "refresh": "auto"} if chance.random() < 0.4 else {}
    schedule = faults.draw(chance, on_store=False) if chance.random() < 0.6 else []
    acts = draw_acts(chance, world.kind, before=bool(rolling))
    schema = f"t_{uuid.uuid4().hex[:12]}"
    tables = world.create(schema, seed, chance.choice([40, 150]))
    folder, small = tmp_path / "lake", None
    folder.mkdir()
    if any(fault.kind == "no_space" for fault in schedule) and (small := request.getfixturevalue("small")):
        folder = small.folder
    # SQLite's catalog does not stand what the faults do to a disk.
    format = "iceberg" if world.kind == "mysql" and not schedule and chance.random() < 0.5 else "parquet"
    lake = Lake(folder, world, tables, format)
    consistency = chance.choice(CONSISTENCIES[world.kind])
    options: dict[str, Any] = {
        "consistency": consistency,
        "chunk_rows": chance.choice([15, 60]),
        "chunk_pause": chance.choice([0.0, 0.05, 0.1]),
        "on_table_error": chance.choice(["fail", "fail", "skip"]),
        "lake": LakeOptions(format, on_type_change="new_column" if format == "iceberg" else "stop"),
    }
    paces = PACES if chance.random() < 0.7 else {}
    story: list[str] = []
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(world.port))
        settings = world.settings(proxy.port)

        def begin(run_id: str, **more: Any) -> tuple[Pipeline, dict[str, Any]]:
            # The steps run in separate processes.
            run = Pipeline(None, settings, folder.as_uri(), tables, run_id=run_id, **{**options, **more})
            run.record()
            note_dag_run(run.run, DagRunNames("dag", run_id))
            return run, {"run_uri": run.run.uri, "settings": asdict(settings), "paces": paces}

        def work(asked: dict[str, Any], planned: list[faults.Fault], acting: Acting | None) -> Outcome:
            chaos = Chaos(world, proxy, Disk(folder, small), fleet, asked, planned)
            chaos.story = story
            outcome = Outcome("done")
            for step in STEPS:
                with ExitStack() as doing:
                    if acting is not None:
                        doing.enter_context(acting.during(step))
                    outcome = chaos.step(step)
                if outcome.how != "done":
                    break
            story.extend(f"late: {late.how} {late.said[:200]}" for late in fleet.settle())
            for kind in chaos.bit:
                record_property(BIT, kind)
            return outcome

        stack.enter_context(world.writing(schema, seed))
        time.sleep(0.2)
        before: dict[str, Any] = {}
        acting = Acting(world, schema, acts, story.append)
        if rolling:
            _, asked = begin(FIRST, **{**rolling, "refresh": "full"})
            assert work(asked, [], None).how == "done", story
            lake.check(tables, FIRST, "; ".join(story))
            before = lake.heads()
            acting.before()
        run, asked = begin(SECOND, **rolling)
        outcome = work(asked, schedule, acting)
        acting.settle()
        told = f"seed {seed}, {world.kind}, {options}, {rolling}: " + "; ".join(story)
        print(told)
        for kind in (*(fault.kind for fault in schedule), *(act.kind for act in acts), PUBLISHED, MOVED):
            record_property(DREW, kind)
        for act in acting.done:
            record_property(BIT, act.kind)
        if outcome.how == "done":
            record_property(BIT, PUBLISHED)
            if Run.load(run.run).manifest.restarts:
                record_property(BIT, MOVED)
        else:
            explained = _explained(outcome, acting, schedule)
            assert explained, told
            run.release()
            assert lake.heads() == before, f"{told}: a run that failed has published something"
            soon(lambda: (told, world.left_behind()), (told, []))
            if chance.random() < 0.6:
                story.append("the tasks are cleared")
                run, asked = begin(SECOND, **rolling)
                outcome = work(asked, [], None)
                told = f"{told}; {'; '.join(story)}"
                assert outcome.how == "done", told
            else:
                assert lake.clean(run) == [], f"{told}: something is left"
                assert lake.heads() == before, told
    if outcome.how == "done":
        skipped = {*_skipped(run)}
        assert not skipped or any(act.change and act.change.gone for act in acting.done), f"{told}: skipped {skipped}"
        lake.check([name for name in tables if name not in skipped], SECOND, told)
        left = [path for path in lake.clean(run) if "/chunks/" in path or "/delta/" in path or "/spool" in path]
        assert left == [], f"{told}: {left}"
        lake.check([name for name in tables if name not in skipped], SECOND, f"{told}: after the clean-up")
    soon(lambda: (told, world.left_behind()), (told, []))


def _explained(outcome: Outcome, acting: Acting, schedule: list[faults.Fault]) -> bool:
    """Return whether something that was done to the source may make a run fail for good."""
    assert outcome.how == "terminal", outcome
    if any(fault.kind == "source_crash" for fault in schedule):
        return True
    done = [act for act in acting.done if act.step != BEFORE]
    if any(act.loss for act in done) and outcome.said.startswith("LogGone"):
        return True
    return any(act.change and act.change.gone for act in done) and outcome.said.startswith("SchemaChanged")


def _skipped(run: Pipeline) -> dict[str, str]:
    return dict(Run.load(run.run).result_of(ConsolidateResult).skipped)
