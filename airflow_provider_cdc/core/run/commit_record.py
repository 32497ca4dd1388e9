"""What the commit of a run fixes: the files of its copies. It is a record in the run's folder, named by its digest.

Later runs that roll these copies forward rest on it: by its name they know that it is what was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_cdc.core.run.feed import Feed
from airflow_provider_cdc.core.run.manifest import Base
from airflow_provider_cdc.core.run.results import Nulled, Skipped
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ManifestError


@dataclass(frozen=True)
class Decision:
    """The files of each copy, by the table's name, and what is told of them. ``skipped``: why the others have none.

    ``files`` are those that the run wrote, in its own folder; ``kept``, named without a folder, those that it takes
    over from the copy that the table was rolled forward from. ``feeds`` are the change feeds.
    """

    files: dict[str, tuple[StagedFile, ...]]
    rewound: dict[str, int]
    nulled: Nulled
    files_rewritten: int
    files_adopted: int
    published_at: str
    skipped: Skipped = field(default_factory=dict)
    kept: dict[str, tuple[StagedFile, ...]] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each copy has."""
        return {name: sum(file.rows for file in self.files_of(name)) for name in self.files}

    def files_of(self, table: str) -> tuple[StagedFile, ...]:
        """All files of one copy, named without a folder."""
        renamed_files = [replace(file, name=file.base_name) for file in self.files.get(table, ())]
        return tuple(sorted([*renamed_files, *self.kept.get(table, ())], key=lambda file: file.name))


def decision_of(run: Run) -> Decision:
    """What the run's commit, which is taken, fixes.

    :raises ManifestError: it is not that of this run.
    """
    assert run.commit is not None
    decision = records.read_named(Decision, run.folder, run.commit.record)
    names = [*decision.files, *decision.skipped]
    if sorted(names) != sorted(str(entry.table.name) for entry in run.manifest.tables):
        raise ManifestError(
            "the commit is not of the tables of this run",
            where=run.folder.uri_of(run.commit.record),
            hint=records.HINT,
        )
    return decision


def published_run(scratch: Storage, run_id: str) -> Run:
    """A run that published its copies.

    :param scratch: the folder in which the folders of runs lie.
    :raises ManifestError: it is not there, or did not publish.
    """
    folder = scratch.folder(run_id)
    run = Run.load(folder)
    if not is_published(run) or run.commit is None:
        raise ManifestError("the run did not publish", where=folder.uri, hint="read the tables in full")
    return run


def base_of(run: Run) -> Base:
    """A run's copies, as another run's manifest names them."""
    assert run.commit is not None
    manifest = run.manifest
    return Base(run.position_text, manifest.identity, run.commit.record)


def read_bases(scratch: Storage, bases: Mapping[str, Base]) -> dict[str, Decision]:
    """What the bases of a run have published, by their run's id.

    :raises ManifestError: a base is gone, or is not the one that the manifest names.
    """
    decisions = {}
    for run_id, base in bases.items():
        run = published_run(scratch, run_id)
        if base_of(run) != base:
            raise ManifestError(
                "the run is not the one whose copies this run was to roll forward",
                where=run.folder.uri,
                hint="trigger a new run",
            )
        decisions[run_id] = decision_of(run)
    return decisions
