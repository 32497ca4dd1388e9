"""A run: one execution, its folder, what is recorded there, and what it leaves.

``<scratch>/<run_id>/manifest.json`` is written when the run begins (`core.beginning`). What each finished step found is
a record of its own, ``steps/<digest of the manifest>/<task_id>.json``, which only one try can make; it names the
records that it rests on by their digests. Whatever a step did that is in none of these (or in a record that they name)
did not happen: a retry does it again.

A run whose source no longer reaches back to the initial position begins anew: with ``manifest-2.json``, and so on. The
last one counts. Before there is another one the *commit* of the last one is taken, by ``abandoned``: so of all
manifests of a run at most one can be published, even if some try still works for an earlier one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.announced import FILE as TOLD
from airflow_provider_cdc.core.run.announced import Told
from airflow_provider_cdc.core.run.manifest import FORMAT, Manifest
from airflow_provider_cdc.core.run.results import CONSOLIDATE, RESULTS, SnapshotResult, StepResult
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable

SCRATCH = "_runs"
"""The folder of the lake that runs lie in unless another scratch is named."""
FILE = "manifest.json"
WORK_FOLDERS = ("chunks", "delta", "staged")
"""The folders of a run that only one in progress needs."""

_COMMIT = "commit"
_IS_LATEST = "latest.json"
_LATER = re.compile(r"manifest-([0-9]+)\.json")

Result = TypeVar("Result", bound=StepResult)


@dataclass(frozen=True)
class StepRecord:
    """What one try of a step found, as one of `core.results`. ``token`` is that try's own. ``rests_on`` has the digests
    of the manifest (under ``manifest``) and of the steps before."""

    task_id: str
    token: str
    rests_on: dict[str, str]
    found: Any


@dataclass(frozen=True)
class Commit:
    """The one decision what is published: ``record`` names the record with the files. ``token`` is that of the try that
    made it. If it is ``abandoned``, nothing ever is: the run began anew."""

    token: str
    rests_on: dict[str, str]
    record: str = ""
    abandoned: bool = False


class Run:
    """A run that began, with what its steps found so far.

    ``steps`` has what finished steps found, by task_id, in their order. ``rests_on`` has the digests of the manifest
    and of these, as a record that rests on them names them.
    """

    def __init__(self, folder: Storage, manifest: Manifest, digest: str, generation: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.digest = digest
        self.generation = generation
        self.steps: dict[str, StepResult] = {}
        self.commit: Commit | None = None
        self.rests_on: dict[str, str] = {}

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def position(self) -> Position:
        """The one position at which all tables of the run are exact.

        :raises ManifestError: the snapshot step fixes it, and is not done.
        :raises PositionError: the text of it in the run's records is none.
        """
        return parse_position(self.manifest.kind, self.position_text)

    @property
    def position_text(self) -> str:
        """`position` as the run's records have it, for other records and for readers.

        :raises ManifestError: the snapshot step fixes it, and is not done.
        """
        return self.found(SnapshotResult).snapshot_upper if self.manifest.at_upper else self.manifest.initial_position

    @property
    def committed(self) -> bool:
        """Whether it is decided what the run publishes."""
        return self.commit is not None and not self.commit.abandoned

    @property
    def abandoned(self) -> bool:
        """Whether the run began anew, so that this manifest no longer counts."""
        return self.commit is not None and self.commit.abandoned

    def found(self, kind: type[Result]) -> Result:
        """What an earlier step found, by the kind of its result.

        :raises ManifestError: it is not done.
        """
        for result in self.steps.values():
            if isinstance(result, kind):
                return result
        (task_id,) = (name for name, own in RESULTS.items() if own is kind)
        raise ManifestError(
            f"the step {task_id} of this run is not finished",
            where=self.folder.uri,
            hint=f"run {task_id} first (clear it and the tasks after it)",
        )

    def finish_step(self, task_id: str, found: Result, token: str = "") -> Result:
        """Record that a step is done and what it found, and return what counts.

        A concurrent try of the step may already have recorded it. Then what that one found counts, since later steps
        may rest on it.

        :param token: that of this try.
        """
        record = StepRecord(task_id, token or uuid.uuid4().hex, self.rests_on, records.encode(found))
        self.folder.create_json(self._name(task_id), records.encode(record))
        # What has been JSON is what every later reader sees.
        self._load(task_id)
        return self.found(type(found))

    def decide(self, commit: Commit) -> Commit:
        """Take the commit, unless it is taken; return the one that counts, now and for ever.

        :raises CommitUnknown: whether it is taken is not known: the store did not say so.
        """
        try:
            self.folder.create_json(self._name(_COMMIT), records.encode(commit))
            self._load(_COMMIT)
        except StorageUnavailable as error:
            raise CommitUnknown(
                f"whether this run is decided to be published is not known: {error.message}",
                where=self.folder.uri,
                hint="run the task again: it looks what became of it, and goes on from there",
            ) from error
        assert self.commit is not None
        return self.commit

    def refresh(self) -> None:
        """Read again what steps have found, and the commit."""
        self._load()

    def note_latest(self, is_latest: Mapping[str, bool]) -> None:
        """Leave, by the table's name, whether this run's copy is its table's latest one now; see `read_is_latest`."""
        self.folder.write_json(_IS_LATEST, dict(is_latest))

    def note_told(self, told: Told | None = None) -> None:
        """Leave word that all that reads the run's own records when it is published has done so; see `was_told`.

        :param told: what it has told Airflow.
        """
        records.write(self.folder, TOLD, told or Told())

    def clean(self) -> None:
        """Remove what only a run in progress needs.

        :raises CdcError, OSError: not all of it could be removed. For a published run that is no failure.
        """
        for name in WORK_FOLDERS:
            self.folder.delete_folder(name)

    @classmethod
    def exists(cls, folder: Storage) -> bool:
        """Whether a run began in ``folder``."""
        return folder.exists(FILE)

    @classmethod
    def load(cls, folder: Storage) -> Run:
        """Read the manifest in ``folder``, the last one if the run began anew, and what its steps found.

        :raises ManifestError: there is none, it is of another run or place, or this version cannot read it.
        """
        generations = [1, *(int(match[1]) for name in folder.files() if (match := _LATER.fullmatch(name)))]
        generation = max(generations)
        name = _manifest_name(generation)
        if not folder.exists(name):
            raise ManifestError(
                "there is no manifest",
                where=folder.uri,
                hint="clear lock_and_record and the tasks after it: it writes the manifest",
            )
        data = records.read_data(folder, name)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ManifestError(
                f"the manifest has format {data.get('format')!r}; this version reads {FORMAT}",
                where=folder.uri,
                hint="finish the run with the version that began it, or trigger a new run",
            )
        manifest = records.decode(Manifest, data, folder.uri_of(name))
        _check_own(folder, manifest)
        run = cls(folder, manifest, records.digest_of(data), generation)
        run._load()
        return run

    @classmethod
    def create(cls, manifest: Manifest, instead_of: Run | None = None) -> Run:
        """Write a manifest unless a concurrent try has already written one; return the run that counts.

        :param instead_of: the one that counts so far, which is abandoned. If it was published meanwhile it stays.
        """
        folder = Storage(manifest.scratch).folder(manifest.run_id)
        generation = 1
        if instead_of is not None:
            abandoned = Commit(uuid.uuid4().hex, instead_of.rests_on, abandoned=True)
            if not instead_of.decide(abandoned).abandoned:
                return cls.load(folder)
            generation = instead_of.generation + 1
        folder.create_json(_manifest_name(generation), records.encode(manifest))
        return cls.load(folder)

    @property
    def _steps(self) -> str:
        return f"steps/{self.digest[:16]}"

    def _name(self, record: str) -> str:
        return f"{self._steps}/{record}.json"

    def _load(self, known: str = "") -> None:
        """:param known: a record that is there, even if the folder as it is seen from here does not list it yet."""
        names = {name for name in self.folder.files(self._steps) if name.endswith(".json")}
        names |= {self._name(known)} if known else set()
        data = {name.rpartition("/")[2].removesuffix(".json"): records.read_data(self.folder, name) for name in names}
        commit = data.pop(_COMMIT, None)
        if strange := data.keys() - RESULTS.keys():
            raise ManifestError(
                f"the run has a record of a step that is not known: {min(strange)}",
                where=self.folder.uri_of(self._steps),
                hint=records.HINT,
            )
        digests = {"manifest": self.digest, **{task_id: records.digest_of(record) for task_id, record in data.items()}}
        steps = {task_id: self._decode(StepRecord, task_id, record) for task_id, record in data.items()}
        grounds = {task_id: step.rests_on for task_id, step in steps.items()}
        self.commit = None
        if commit is not None:
            self.commit = self._decode(Commit, _COMMIT, commit)
            if not self.commit.abandoned:
                grounds[_COMMIT] = self.commit.rests_on
        for name, rests_on in grounds.items():
            for ground, digest in rests_on.items():
                if digests.get(ground) != digest:
                    raise ManifestError(
                        f"{name} of this run rests on another {ground} than the one that counts",
                        where=self.folder.uri_of(self._name(name)),
                        hint=records.HINT,
                    )
        self.steps = {
            task_id: self._decode(kind, task_id, steps[task_id].found)
            for task_id, kind in RESULTS.items()
            if task_id in steps
        }
        self.rests_on = digests

    def _decode(self, kind: type[records.Record], name: str, data: Any) -> records.Record:
        return records.decode(kind, data, self.folder.uri_of(self._name(name)))


def scratch_of(lake: str) -> str:
    """The folder in which the folders of runs lie unless another one is named, of a lake's URI."""
    return str(LakeUri.parse(lake).joined(SCRATCH))


def run_id_in(folder: Storage) -> str:
    """The id of the run whose folder it is."""
    return folder.uri.rpartition("/")[2]


def read_is_latest(folder: Storage) -> dict[str, bool]:
    """By the table's name, whether the copy of the run in ``folder`` was its table's latest one when it was published.

    :raises ManifestError: it was not published, or the record is damaged.
    """
    return records.read(dict[str, bool], folder, _IS_LATEST)


def is_published(run: Run) -> bool:
    """Whether all of the run's copies were published."""
    return CONSOLIDATE in run.steps


def was_told(run: Run) -> bool:
    """Whether the task that publishes the run has come to its own end."""
    return run.folder.exists(TOLD)


def _manifest_name(generation: int) -> str:
    return FILE if generation == 1 else f"manifest-{generation}.json"


def _check_own(folder: Storage, manifest: Manifest) -> None:
    """Mistaking another run's manifest for its own would make a run publish that run's rows.

    :raises ManifestError: it is of another run, or was written in another place.
    """
    for what, found, own in (
        ("run", manifest.run_id, run_id_in(folder)),
        ("folder", manifest.scratch, folder.parent().uri),
    ):
        if found != own:
            raise ManifestError(
                f"the manifest is that of the {what} {found}, and not of {own}",
                where=folder.uri,
                hint="a run cannot be moved or copied: trigger a new run",
            )
