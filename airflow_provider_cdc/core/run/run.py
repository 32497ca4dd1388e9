"""A run: one execution, its folder, the records in that folder, and its state.

The decisions of a run are the entries of its ledger (`core.run.ledger`): it begins with a manifest
(`jobs.begin.initial_position`), it may move to a later position with another manifest, its steps end, and it commits
and publishes. The state of the run follows from these entries. The work of a step is valid only if an entry, or a
record that an entry names, contains it. A retry repeats all work that no entry contains.

Only the last manifest is valid. The entry with another manifest makes the results of the steps before it void, and no
entry of an attempt that still works under the earlier manifest can follow it. So at most one manifest of a run can be
published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run import published_v5
from airflow_provider_cdc.core.run.ledger import (
    FIRST,
    FOLDER,
    Begun,
    CopiesPublished,
    Ended,
    Entry,
    Extracted,
    FilesCommitted,
    Ledger,
    Link,
    Moved,
    PieceTaken,
    ReadsEnded,
    State,
    spooling_identity,
)
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.results import (
    CONSOLIDATE,
    RESULTS,
    AnnouncedCopies,
    ConsolidateResult,
    DeltaResult,
    SnapshotResult,
    StepResult,
)
from airflow_provider_cdc.core.run.results import FILE as ANNOUNCED
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable

SCRATCH = "_runs"
"""The default scratch: a folder in the lake for the folders of runs."""
WORK_FOLDERS = ("chunks", "delta", "staged")
"""The folders of a run that are needed only while the run is in progress."""

_IS_LATEST = "latest.json"

Result = TypeVar("Result", bound=StepResult)


class RunRestarted(Exception):
    """Ends the work of an attempt, because the run has moved, has begun anew, was ended or was removed since the
    attempt read its state. The attempt reads the state again, and decides again what to do."""


class Run:
    """A run that has begun, with the results of its steps so far.

    ``state`` is the state with which this attempt works. It changes only by the entries of this attempt and by
    `refresh`, and its manifest never changes.
    """

    def __init__(self, folder: Storage, manifest: Manifest, state: State) -> None:
        self.folder = folder
        self.manifest = manifest
        self.state = state
        self._ledger = Ledger(folder)

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def digest(self) -> str:
        """The digest of the entry with the manifest. It identifies the manifest."""
        return self.state.digest

    @property
    def generation(self) -> int:
        """The number of the manifest: 1 is the first one."""
        return len(self.state.earlier) + 1

    @property
    def steps(self) -> Mapping[str, StepResult]:
        """The results of the finished steps, by task_id, in the order of the steps."""
        return self.state.steps

    @property
    def commit(self) -> FilesCommitted | None:
        """The decision about which files are published."""
        return self.state.commit

    @property
    def committed(self) -> bool:
        return self.state.commit is not None

    @property
    def ended(self) -> bool:
        """Whether the run was stopped or cleaned up, and has not begun anew."""
        return self.state.ended is not None

    def expected_identity(self, start: str = "") -> Facts:
        """Return the identity with which the source must be checked: that of a start, with the end of the log since the
        start that the run has recorded so far.

        :param start: the key of the start. Empty: the latest start.
        """
        spool, pieces = self.manifest.options.log.spool, self.pieces(start)
        if not pieces and not self.state.spools(start or self.manifest.start):
            spool = OFF
        facts = self.manifest.all_starts[start or self.manifest.start].facts
        return spooling_identity(facts, pieces[-1] if pieces else None, spool)

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
        if self.state.position is None:
            return self.result_of(SnapshotResult).snapshot_upper
        return self.state.position

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

    def finish_step(self, task_id: str, found: Result) -> Result:
        """Record the result of a finished step, and return the recorded result.

        A concurrent attempt may already have recorded a result. In this case, return the result of that attempt,
        because later steps may depend on it.

        :raises RunRestarted: the result does not count, because the run went on without it.
        """
        self._append(_ended_step(found), lambda: task_id in self.steps)
        # Return the result as read from JSON, because every later reader gets the result in this form.
        return self.result_of(type(found))

    def record_commit(self, record: str, token: str) -> FilesCommitted:
        """Record the commit, unless a commit is already recorded. Return the recorded commit. A commit never changes.

        :param record: the name of the record with the files to publish.
        :param token: identifies this attempt.
        :raises CommitUnknown: it is unknown whether the commit was recorded, because the store failed.
        :raises RunRestarted: the run has moved, has begun anew, was ended or was removed.
        """
        try:
            self._append(FilesCommitted(record, token), lambda: self.committed)
        except StorageUnavailable as error:
            raise CommitUnknown(
                f"cannot tell whether the commit of this run was stored: {error.message}",
                where=self.folder.uri,
                hint="run the task again: it checks whether the commit was stored, and continues from there",
            ) from error
        assert self.commit is not None
        return self.commit

    def _append(self, entry: Entry, is_recorded: Callable[[], bool]) -> None:
        """Record an entry, unless ``is_recorded``. The entries of other attempts under the same manifest do not matter:
        they are pieces of the log, or results of the same work.

        :raises RunRestarted: the run has another manifest now, has ended, or was removed.
        """
        while (present := self._ledger.append(self.state, entry)) is None:
            self.refresh()
            if is_recorded():
                return
            if self.ended:
                raise RunRestarted
            if not self.state.permits(entry):
                raise ManifestError(
                    f"the entry {type(entry).__name__} cannot follow the entries of this run: an earlier step is not "
                    "finished",
                    where=self.folder.uri,
                    hint="clear the task of the first step that is not finished, and all tasks after it",
                )
        self._take_over(present)

    def pieces(self, start: str = "") -> tuple[Link, ...]:
        """Return the pieces of the log since a start that were recorded so far, also those of other attempts.

        :param start: the key of the start. Empty: the latest start.
        """
        state = self._ledger.state()
        state = state if state.digest == self.digest else self.state
        return state.pieces.get(start or self.manifest.start, ())

    def take_piece(self, start: str, piece: Link) -> bool:
        """Record a piece of the log since a start (empty: the latest one). Return False if it does not count: another
        attempt has recorded this stretch of the log, the reads have ended, or the run went on without this manifest."""
        entry = PieceTaken(start or self.manifest.start, piece)
        while (state := self._ledger.state()).digest == self.digest and state.permits(entry):
            if self._ledger.append(state, entry) is not None:
                return True
        return False

    def move(self, manifest: Manifest, pieces: Mapping[str, Link]) -> bool:
        """Give the run another manifest, with a later position. Return False if any other entry was recorded since the
        state of this run was read: the position of ``manifest`` may not contain a piece of the log, or an attempt
        goes on with results of the present manifest.

        :param pieces: the last piece of the log up to this position, by start.
        """
        return self._ledger.append(self.state, Moved(manifest, dict(pieces))) is not None

    def end(self, why: str) -> State:
        """Make sure that nothing of the run is published, unless it is started again. Return the present state. It has
        not ended if the run has its commit, has begun anew, or was removed."""
        while True:
            state = self._ledger.state()
            if state.digest == self.digest:
                self.state = state
            if state.ended is not None or state.begun != self.state.begun or not state.permits(Ended(why)):
                return state
            self._ledger.append(state, Ended(why))

    def refresh(self) -> None:
        """Read the entries since the state of this run was read.

        :raises RunRestarted: the run has another manifest now, or was removed.
        """
        self._take_over(self._ledger.state())

    def _take_over(self, state: State) -> None:
        if state.digest != self.digest:
            raise RunRestarted
        self.state = state

    def note_latest(self, is_latest: Mapping[str, bool]) -> None:
        """Record, by the table's name, whether this run's copy is now the table's latest copy; see `read_is_latest`."""
        self.folder.write_json(_IS_LATEST, dict(is_latest))

    def record_announced(self, announced: AnnouncedCopies | None = None) -> None:
        """Record that the publishing task of this run has finished reading the run's records; see `was_announced`.

        :param announced: the events that the task reported to Airflow.
        """
        records.write(self.folder, ANNOUNCED, announced or AnnouncedCopies())

    def clean(self) -> None:
        """Remove the folders that are needed only while the run is in progress.

        :raises CdcError, OSError: some folders could not be removed. If the run is published, this is not a failure.
        """
        for name in WORK_FOLDERS:
            self.folder.delete_folder(name)

    @classmethod
    def exists(cls, folder: Storage) -> bool:
        """Return whether a run began in ``folder``."""
        return folder.exists(FIRST) or folder.exists(published_v5.FILE)

    @classmethod
    def load(cls, folder: Storage) -> Run:
        """Read the state of the run in ``folder``.

        :raises ManifestError: no run has begun, the run is of another folder, or this version cannot read it.
        """
        state = Ledger(folder).state()
        if state.manifest is None and (published := published_v5.read_published(folder)) is not None:
            state = published
        if state.manifest is None:
            raise ManifestError(
                "there is no manifest",
                where=folder.uri,
                hint="clear the task `lock_and_record`, which writes the manifest, and all tasks after it",
            )
        _check_own(folder, state.manifest)
        return cls(folder, state.manifest, state)

    @classmethod
    def create(cls, manifest: Manifest, after: Run | None = None) -> Run:
        """Begin a run.

        :param after: the run as it is until now, if it begins anew.
        :raises RunRestarted: the run has begun already, any entry was recorded since ``after`` was read, or it has its
            commit.
        """
        folder = Storage(manifest.scratch).folder(manifest.run_id)
        state = after.state if after is not None else State()
        if (after is None and cls.exists(folder)) or Ledger(folder).append(state, Begun(manifest)) is None:
            raise RunRestarted
        return cls.load(folder)


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


def written_state(folder: Storage) -> list[str]:
    """Return the names of the files with the state of a run, also of a run of another version."""
    return [*folder.files(FOLDER), *published_v5.manifests(folder)]


def remove_state(folder: Storage) -> None:
    """Remove the state of a run. After that, ``folder`` has no run, and no entry of an attempt that goes on counts."""
    # Without the first entry, no other entry counts, so it is deleted first. Of format 5, the last manifest counts.
    folder.delete_file(FIRST)
    for name in reversed(published_v5.manifests(folder)):
        folder.delete_file(name)


def is_published(run: Run) -> bool:
    """Return whether all of the run's copies were published."""
    return CONSOLIDATE in run.steps


def was_announced(run: Run) -> bool:
    """Return whether the task that publishes the run has reached its end."""
    return run.folder.exists(ANNOUNCED)


def _ended_step(found: StepResult) -> Entry:
    match found:
        case SnapshotResult():
            return ReadsEnded(found)
        case DeltaResult():
            return Extracted(found)
        case ConsolidateResult():
            return CopiesPublished(found)


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
