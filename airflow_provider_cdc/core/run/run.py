"""A run: one execution, its folder, the records in that folder, and its state.

``<scratch>/<run_id>/manifest.json`` is written when the run begins (`jobs.begin.initial_position`). The result of each
finished step is a separate record, ``steps/<digest of the manifest>/<task_id>.json``, which only one try can create.
The record of a step contains the digests of the records that it depends on. The work of a step is valid only if one of
these records, or a record that they name, contains it. A retry repeats all work that no record contains.

If the source no longer has the log since the initial position, the run begins anew, with ``manifest-2.json``, and so
on. Only the last manifest is valid. Before another manifest is written, the *commit* of the previous manifest is
recorded as ``abandoned``. (A commit is the decision about which files are published.) So at most one manifest of a run
can be published, even if a try is still working on an earlier manifest.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import FORMAT, Manifest
from airflow_provider_cdc.core.run.results import CONSOLIDATE, RESULTS, SnapshotResult, StepResult, Told
from airflow_provider_cdc.core.run.results import FILE as TOLD
from airflow_provider_cdc.core.run.spool_chain import spooling_identity
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable

SCRATCH = "_runs"
"""The default scratch: a folder in the lake for the folders of runs."""
FILE = "manifest.json"
WORK_FOLDERS = ("chunks", "delta", "staged")
"""The folders of a run that are needed only while the run is in progress."""

_COMMIT = "commit"
_FOLLOWING = "commit/manifest"
_IS_LATEST = "latest.json"
_LATER = re.compile(r"manifest-([0-9]+)\.json")

Result = TypeVar("Result", bound=StepResult)


@dataclass(frozen=True)
class StepRecord:
    """The result of one try of a step. ``found`` is an object of a class in `core.run.results`. ``token`` identifies
    the try. ``rests_on`` has the digests of the manifest (under ``manifest``) and of the results of the earlier
    steps."""

    task_id: str
    token: str
    rests_on: dict[str, str]
    found: Any


@dataclass(frozen=True)
class Commit:
    """The decision about which files are published. It is made only once. ``record`` names the record with the files.
    ``token`` identifies the try that made the decision. If the commit is ``abandoned``, nothing is ever published for
    this manifest, because the run began anew. In this case, ``record`` names the record of the manifest that follows.
    It is empty if no manifest follows, because the run was stopped or cleaned up."""

    token: str
    rests_on: dict[str, str]
    record: str = ""
    abandoned: bool = False


class Run:
    """A run that has begun, with the results of its steps so far.

    ``steps`` has the results of finished steps, by task_id, in the order of the steps. ``rests_on`` has the digests of
    the manifest and of these results, for records that depend on them.
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

    def expected_identity(self) -> Facts:
        """Return the identity with which the source must be checked. It is the identity in the manifest, with the end
        of the log that the run has spooled so far."""
        return spooling_identity(self.manifest.identity, self.folder, self.digest, self.manifest.options.log.spool)

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the manifest, and of the earlier manifests that it continues (`Manifest.restarts`)."""
        return frozenset({self.digest, *(restart.manifest for restart in self.manifest.restarts)})

    @property
    def position(self) -> Position:
        """The position at which all tables of the run are exact.

        :raises ManifestError: the snapshot step determines this position, and is not finished.
        :raises PositionError: the text in the run's records is not a position.
        """
        return self.manifest.position_in(self.position_text)

    @property
    def position_text(self) -> str:
        """The text of `position`, as in the run's records. Other records and readers use this text.

        :raises ManifestError: the snapshot step determines this position, and is not finished.
        """
        return (
            self.result_of(SnapshotResult).snapshot_upper if self.manifest.at_upper else self.manifest.initial_position
        )

    @property
    def committed(self) -> bool:
        """Whether the run has a commit that is not abandoned. The commit decides which files are published."""
        return self.commit is not None and not self.commit.abandoned

    @property
    def abandoned(self) -> bool:
        """Whether the run began anew. In this case, this manifest is no longer valid."""
        return self.commit is not None and self.commit.abandoned

    def result_of(self, kind: type[Result]) -> Result:
        """Return the result of an earlier step, by its class.

        :raises ManifestError: the step is not finished.
        """
        for result in self.steps.values():
            if isinstance(result, kind):
                return result
        (task_id,) = (name for name, own in RESULTS.items() if own is kind)
        raise ManifestError(
            f"the step {task_id} of this run is not finished",
            where=self.folder.uri,
            hint=f"clear the task `{task_id}` and all tasks after it",
        )

    def finish_step(self, task_id: str, found: Result, token: str = "") -> Result:
        """Record the result of a finished step, and return the recorded result.

        A concurrent try of the step may already have recorded a result. In this case, return the result of that try,
        because later steps may depend on it.

        :param token: identifies this try.
        """
        record = StepRecord(task_id, token or uuid.uuid4().hex, self.rests_on, records.encode(found))
        self.folder.create_json(self._name(task_id), records.encode(record))
        # Return the result after reading it back from JSON, because every later reader gets the result in this form.
        self._load(task_id)
        return self.result_of(type(found))

    def record_commit(self, commit: Commit) -> Commit:
        """Record the commit, unless a commit is already recorded. Return the recorded commit. A commit never changes.

        :raises CommitUnknown: it is unknown whether the commit was recorded, because the store failed.
        """
        try:
            self.folder.create_json(self._name(_COMMIT), records.encode(commit))
            self._load(_COMMIT)
        except StorageUnavailable as error:
            raise CommitUnknown(
                f"cannot tell whether the commit of this run was stored: {error.message}",
                where=self.folder.uri,
                hint="run the task again: it checks whether the commit was stored, and continues from there",
            ) from error
        assert self.commit is not None
        return self.commit

    def drop_results(self) -> None:
        """Delete the results of the steps of an abandoned run. A commit depends on these results. So after this, no try
        can create a valid commit, even if the record of the abandoned commit is deleted, too."""
        # Each result depends on those of the earlier steps.
        for task_id in reversed(RESULTS):
            with suppress(FileNotFoundError):
                self.folder.delete_file(self._name(task_id))

    def refresh(self) -> None:
        """Read the results of the steps, and the commit, again."""
        self._load()

    def note_latest(self, is_latest: Mapping[str, bool]) -> None:
        """Record, by the table's name, whether this run's copy is now the table's latest copy; see `read_is_latest`."""
        self.folder.write_json(_IS_LATEST, dict(is_latest))

    def note_told(self, told: Told | None = None) -> None:
        """Record that the publishing task of this run has finished reading the run's records; see `was_told`.

        :param told: the events that the task reported to Airflow.
        """
        records.write(self.folder, TOLD, told or Told())

    def clean(self) -> None:
        """Remove the folders that are needed only while the run is in progress.

        :raises CdcError, OSError: some folders could not be removed. If the run is published, this is not a failure.
        """
        for name in WORK_FOLDERS:
            self.folder.delete_folder(name)

    @classmethod
    def exists(cls, folder: Storage) -> bool:
        """Return whether a run began in ``folder``."""
        return folder.exists(FILE)

    @classmethod
    def load(cls, folder: Storage) -> Run:
        """Read the manifest in ``folder`` (if the run began anew: the last manifest) and the results of its steps.

        :raises ManifestError: there is no manifest, the manifest is of another run or folder, or this version cannot
            read it.
        """
        generations = [1, *(int(match[1]) for name in folder.files() if (match := _LATER.fullmatch(name)))]
        generation = max(generations)
        name = _manifest_name(generation)
        if not folder.exists(name):
            raise ManifestError(
                "there is no manifest",
                where=folder.uri,
                hint="clear the task `lock_and_record`, which writes the manifest, and all tasks after it",
            )
        data = records.read_data(folder, name)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ManifestError(
                f"the manifest has format {data.get('format')!r}; this version reads {FORMAT}",
                where=folder.uri,
                hint=records.OTHER_VERSION,
            )
        manifest = records.decode(Manifest, data, folder.uri_of(name))
        _check_own(folder, manifest)
        run = cls(folder, manifest, records.digest_of(data), generation)
        run._load()
        return run

    def earlier_manifests(self) -> list[Manifest]:
        """Return the manifests that the run had before, the first one first."""
        names = [_manifest_name(generation) for generation in range(1, self.generation)]
        return [records.read(Manifest, self.folder, name) for name in names if self.folder.exists(name)]

    @classmethod
    def create(cls, manifest: Manifest, instead_of: Run | None = None) -> Run:
        """Write a manifest, unless a concurrent try has already written one. Return the run with the manifest that was
        written first.

        :param instead_of: the run with the manifest that is valid until now. This manifest is abandoned, unless the run
            already has a commit.
        """
        folder = Storage(manifest.scratch).folder(manifest.run_id)
        if instead_of is None:
            folder.create_json(_manifest_name(1), records.encode(manifest))
            return cls.load(folder)
        following = records.write_named(folder, _FOLLOWING, manifest)
        was_abandoned = instead_of.abandoned
        commit = instead_of.record_commit(Commit(uuid.uuid4().hex, instead_of.rests_on, following, abandoned=True))
        if commit.abandoned and not instead_of.begin_following() and was_abandoned:
            # The run was stopped or cleaned up before, and is now started again. If it is stopped at this moment, it
            # stays stopped.
            folder.create_json(_manifest_name(instead_of.generation + 1), records.encode(manifest))
        return cls.load(folder)

    @property
    def continues(self) -> bool:
        """Whether the run began anew with a manifest that the commit of this manifest names."""
        return self.commit is not None and self.commit.abandoned and bool(self.commit.record)

    def begin_following(self) -> bool:
        """Write the manifest that follows, if the run goes on. Return whether it does. The attempt that abandoned the
        present manifest may have been killed before it wrote the following one."""
        if self.commit is None or not self.continues:
            return False
        following = records.read_named(Manifest, self.folder, self.commit.record)
        self.folder.create_json(_manifest_name(self.generation + 1), records.encode(following))
        return True

    @property
    def _steps(self) -> str:
        return f"steps/{self.digest[:16]}"

    def _name(self, record: str) -> str:
        return f"{self._steps}/{record}.json"

    def _load(self, known: str = "") -> None:
        """Read the results of the steps, and the commit.

        :param known: a record that exists, even if the store does not list it in the folder yet.
        """
        names = {name for name in self.folder.files(self._steps) if name.endswith(".json")}
        names |= {self._name(known)} if known else set()
        data = {name.rpartition("/")[2].removesuffix(".json"): records.read_data(self.folder, name) for name in names}
        commit = data.pop(_COMMIT, None)
        if strange := data.keys() - RESULTS.keys():
            raise ManifestError(
                f"the run has a record of an unknown step: {min(strange)}",
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
                        f"the record {name} of this run depends on an earlier version of the record {ground}, which "
                        "was replaced",
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
    """Return the default scratch of a lake: the folder for the folders of its runs."""
    return str(LakeUri.parse(lake).joined(SCRATCH))


def run_id_in(folder: Storage) -> str:
    """Return the id of the run with this folder."""
    return folder.uri.rpartition("/")[2]


def read_is_latest(folder: Storage) -> dict[str, bool]:
    """Return, by the table's name, whether the copy of the run in ``folder`` was the latest copy when it was published.

    :raises ManifestError: the run was not published, or the record is damaged.
    """
    return records.read(dict[str, bool], folder, _IS_LATEST)


def is_published(run: Run) -> bool:
    """Return whether all of the run's copies were published."""
    return CONSOLIDATE in run.steps


def was_told(run: Run) -> bool:
    """Return whether the task that publishes the run has reached its end."""
    return run.folder.exists(TOLD)


def _manifest_name(generation: int) -> str:
    return FILE if generation == 1 else f"manifest-{generation}.json"


def _check_own(folder: Storage, manifest: Manifest) -> None:
    """Check that the manifest belongs to the run in ``folder``. With the manifest of another run, this run would
    publish wrong rows.

    :raises ManifestError: the manifest belongs to another run, or was written in another folder.
    """
    for what, found, own in (
        ("run", manifest.run_id, run_id_in(folder)),
        ("folder", manifest.scratch, folder.parent().uri),
    ):
        if found != own:
            raise ManifestError(
                f"the manifest belongs to the {what} {found}, not to {own}",
                where=folder.uri,
                hint="a run cannot be moved or copied: trigger a new run",
            )
