"""A run's durable record.

``<target>/_runs/<run_id>/manifest.json`` is written by ``lock_and_record``: what the run copies, from where, at which
position. It never changes. What each finished step found is a record of its own, ``steps/<digest of the
manifest>/<task_id>.json``, which only one try can make; it names the records that it rests on by their digests.
Whatever a step did that is in none of these (or in a record that they name) did not happen: a retry does it again.

A run whose source no longer reaches back to the initial position begins anew: with ``manifest-2.json``, and so on. The
last one counts. Before there is another one the *commit* of the last one is taken, by ``abandoned``: so of all
manifests of a run at most one can be published, whoever still works for an earlier one.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core import records
from airflow_provider_cdc.core.head import source_of
from airflow_provider_cdc.core.options import StepOptions
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import ManifestError

FORMAT = 2
FILE = "manifest.json"
COMMIT = "commit"

_LATER = re.compile(r"manifest-([0-9]+)\.json")
_DAMAGED = "remove the run's folder and trigger a new run"


@dataclass(frozen=True)
class RunTable:
    """A table of the run: its schema at the initial position, how it is read, and why so."""

    table: Table
    consistency: str
    reason: str


@dataclass(frozen=True)
class StepRecord:
    """What one try of a step found, JSON only. ``token`` is that try's own. ``rests_on`` has the digests of the
    manifest (under ``manifest``) and of the steps before."""

    task_id: str
    token: str
    rests_on: dict[str, str]
    found: dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """The one decision what is published: ``record`` names the record with the files. ``token`` is that of the try that
    made it. If it is ``abandoned``, nothing ever is: the run began anew."""

    token: str
    rests_on: dict[str, str]
    record: str = ""
    abandoned: bool = False


@dataclass
class Manifest:
    """The record of one run.

    ``steps`` maps a finished step's task_id to what it found; JSON only. ``identity`` is the source's, as
    ``Source.record_initial`` gave it; ``source_conn_id`` names the connection to it. ``skipped`` says why each
    table that was named is no part of the run, by its name. It holds no secret.
    """

    run_id: str
    kind: str
    position_key: str
    initial_position: str
    identity: dict[str, str]
    created_at: str
    tables: list[RunTable]
    options: StepOptions = field(default_factory=StepOptions)
    skipped: dict[str, str] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    source_conn_id: str = ""
    generation: int = 1
    commit: Commit | None = None
    digest: str = field(default="", compare=False)
    rests_on: dict[str, str] = field(default_factory=dict, compare=False)
    """Digests of this and of the finished steps, as a record that rests on them names them."""

    @property
    def source(self) -> dict[str, str]:
        """What the run's copies say of their source."""
        return source_of(self.kind, self.identity, self.source_conn_id)

    @property
    def committed(self) -> bool:
        """Whether it is decided what the run publishes."""
        return self.commit is not None and not self.commit.abandoned

    @property
    def abandoned(self) -> bool:
        """Whether the run began anew, so that this manifest counts no more."""
        return self.commit is not None and self.commit.abandoned

    def save(self, run: Storage, instead_of: Manifest | None = None) -> Manifest:
        """Write it under ``run`` (the run's own folder) unless another try was quicker; return the one that counts.

        :param instead_of: the one that counts so far, which is abandoned. If it was published meanwhile it stays.
        """
        if instead_of is not None:
            abandoned = Commit(uuid.uuid4().hex, instead_of.rests_on, abandoned=True)
            if not instead_of.decide(run, abandoned).abandoned:
                return Manifest.load(run)
            self.generation = instead_of.generation + 1
        data = {
            "format": FORMAT,
            "run_id": self.run_id,
            "target": _target(run),
            "source_conn_id": self.source_conn_id,
            "kind": self.kind,
            "position_key": self.position_key,
            "initial_position": self.initial_position,
            "identity": self.identity,
            "created_at": self.created_at,
            "tables": records.encode(self.tables),
            "options": records.encode(self.options),
            "skipped": self.skipped,
        }
        self.digest = records.digest_of(data)
        run.create_json(FILE if self.generation == 1 else f"manifest-{self.generation}.json", data)
        return Manifest.load(run)

    def finish_step(self, run: Storage, task_id: str, found: dict[str, Any], token: str = "") -> dict[str, Any]:
        """Record that a step is done and what it found, and return what counts.

        Another try of the step, thought dead, may have been quicker. Then what that one found counts, since later steps
        may rest on it.

        :param token: that of this try.
        """
        record = StepRecord(task_id, token or uuid.uuid4().hex, self.rests_on, found)
        run.create_json(self._name(task_id), records.encode(record))
        # What has been JSON is what every later reader sees.
        self._load_steps(run, task_id)
        return self.steps[task_id]

    def decide(self, run: Storage, commit: Commit) -> Commit:
        """Take the commit, unless it is taken; return the one that counts, now and for ever."""
        run.create_json(self._name(COMMIT), records.encode(commit))
        self._load_steps(run, COMMIT)
        assert self.commit is not None
        return self.commit

    def refresh(self, run: Storage) -> None:
        """Read again what steps have found, and the commit."""
        self._load_steps(run)

    @classmethod
    def exists(cls, run: Storage) -> bool:
        return run.exists(FILE)

    @classmethod
    def load(cls, run: Storage) -> Manifest:
        """Read the manifest under ``run``, the last one if the run began anew, and what its steps found.

        :raises ManifestError: there is none, it is of another run or target, or this version cannot read it.
        """
        generations = [1, *(int(match[1]) for name in run.files() if (match := _LATER.fullmatch(name)))]
        generation = max(generations)
        name = FILE if generation == 1 else f"manifest-{generation}.json"
        if not run.exists(name):
            raise ManifestError(
                "there is no manifest",
                where=run.uri,
                hint="clear lock_and_record and the tasks after it: it writes the manifest",
            )
        data = records.read_data(run, name)
        if not isinstance(data, dict):
            raise ManifestError(f"{name} is damaged: it is no object", where=run.uri, hint=_DAMAGED)
        if data.get("format") != FORMAT:
            raise ManifestError(
                f"the manifest has format {data.get('format')!r}; this version reads {FORMAT}",
                where=run.uri,
                hint="finish the run with the version that began it, or trigger a new run",
            )
        digest = records.digest_of(data)
        core = records.decode(_Core, data, run.uri_of(name))
        _check_own(run, core)
        manifest = cls(
            core.run_id,
            core.kind,
            core.position_key,
            core.initial_position,
            core.identity,
            core.created_at,
            list(core.tables),
            core.options,
            core.skipped,
            source_conn_id=core.source_conn_id,
            generation=generation,
            digest=digest,
        )
        manifest._load_steps(run)
        return manifest

    def _name(self, record: str) -> str:
        return f"{self._folder}/{record}.json"

    @property
    def _folder(self) -> str:
        return f"steps/{self.digest[:16]}"

    def _load_steps(self, run: Storage, known: str = "") -> None:
        """:param known: a record that is there, even if the folder as it is seen from here does not list it yet."""
        names = {name for name in run.files(self._folder) if name.endswith(".json")}
        names |= {self._name(known)} if known else set()
        data = {name.rpartition("/")[2].removesuffix(".json"): records.read_data(run, name) for name in names}
        commit = data.pop(COMMIT, None)
        digests = {"manifest": self.digest, **{task_id: records.digest_of(own) for task_id, own in data.items()}}
        steps = {
            task_id: records.decode(StepRecord, own, run.uri_of(self._name(task_id))) for task_id, own in data.items()
        }
        self.commit = None
        grounds = {task_id: step.rests_on for task_id, step in steps.items()}
        if commit is not None:
            self.commit = records.decode(Commit, commit, run.uri_of(self._name(COMMIT)))
            if not self.commit.abandoned:
                grounds[COMMIT] = self.commit.rests_on
        for name, rests_on in grounds.items():
            for ground, digest in rests_on.items():
                if digests.get(ground) != digest:
                    raise ManifestError(
                        f"{name} of this run rests on another {ground} than the one that counts",
                        where=run.uri_of(self._name(name)),
                        hint=records.HINT,
                    )
        # Each rests on all before it.
        in_order = sorted(steps, key=lambda task_id: len(steps[task_id].rests_on))
        self.steps = {task_id: steps[task_id].found for task_id in in_order}
        self.rests_on = digests


@dataclass(frozen=True)
class _Core:
    """What stands in the file."""

    format: int
    run_id: str
    target: str
    kind: str
    position_key: str
    initial_position: str
    identity: dict[str, str]
    created_at: str
    tables: tuple[RunTable, ...]
    options: StepOptions
    source_conn_id: str = ""
    skipped: dict[str, str] = field(default_factory=dict)


def _target(run: Storage) -> str:
    return run.parent().parent().uri


def _check_own(run: Storage, core: _Core) -> None:
    """Whoever mistakes the manifest of another run for his own publishes that one's rows as his.

    :raises ManifestError: it is of another run or target.
    """
    own = {"run": run.uri.rpartition("/")[2], "target": _target(run)}
    for what, found in (("run", core.run_id), ("target", core.target)):
        if found != own[what]:
            raise ManifestError(
                f"the manifest is that of the {what} {found}, and not of {own[what]}",
                where=run.uri,
                hint="a run cannot be moved or copied: trigger a new run",
            )
