"""The commit record of a run: the files of its copies. The record is in the run's folder, and its digest is part of its
name.

Later runs that roll these copies forward depend on this record. These runs compare the content of the record with the
digest in its name, to verify that it is the record that was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from airflow_provider_cdc.core.digest.totals import Proof
from airflow_provider_cdc.core.parquet.writer import total_of
from airflow_provider_cdc.core.run.ledger import FIRST, FilesCommitted, State
from airflow_provider_cdc.core.run.manifest import Base, FeedGap, Manifest, Place
from airflow_provider_cdc.core.run.results import CONSOLIDATE, ConsolidateResult, Nulled, Skipped
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError

# A table's change feed: the files with every row change between the previous copy and the run's copy, in commit order.
#
# The files have the columns of `feed_schema`. The numbers in the column ``order`` continue from one feed to the next.


@dataclass(frozen=True)
class Feed:
    """The feed of a table in a run. It has all changes after the position ``start``. The copy of the run ``base`` is
    exact at this position.

    ``first`` is the order number of the first change. ``files`` are in the run's folder, sorted by the order of their
    changes.
    """

    base: str
    start: str
    first: int
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def next(self) -> int:
        """The order number of the first change of the next feed."""
        return self.first + self.rows


def feed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a feed.

    :param schema: the columns of the table's copies.
    """
    # Before an insert and after a delete, there is no row, so every column may be null.
    row = pa.struct([field.with_nullable(True) for field in schema])
    return pa.schema(
        [
            pa.field("operation", pa.string(), nullable=False),
            pa.field("position", pa.string(), nullable=False),
            pa.field("order", pa.int64(), nullable=False),
            pa.field("commit_time", pa.timestamp("us", "UTC")),
            pa.field("before", row),
            pa.field("after", row),
        ]
    )


@dataclass(frozen=True)
class Decision:
    """The files of each copy, by the table's name, and figures about the copies. ``skipped`` says why other tables have
    no copy.

    ``files`` are the files that the run wrote, in its own folder. ``kept`` are the files that the run takes over from
    each table's base, which is the copy that was rolled forward. The file names in ``kept`` do not contain a folder.
    ``feeds`` are the change feeds, and ``feed_gaps`` the gaps in the feeds of other tables. ``proofs`` are
    the facts about each copy for its certificate, and ``versions`` the versions of the programs that made the copies.
    Records of earlier versions have none of these three.
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
    feed_gaps: dict[str, FeedGap] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The number of rows of each copy."""
        return {
            name: sum(file.live_rows for file in (*files, *self.kept.get(name, ())))
            for name, files in self.files.items()
        }

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each copy's rows (`Digest.hex`). Copies whose digest is not known are left out."""
        totals = {name: total_of(self.files_of(name)) for name in self.files}
        return {name: total.hex for name, total in totals.items() if total is not None}

    def next_order(self, table: str) -> int:
        """Return the order number of the first change after one copy."""
        if (feed := self.feeds.get(table)) is not None:
            return feed.next
        gap = self.feed_gaps.get(table)
        return 1 if gap is None else gap.first

    def files_of(self, table: str) -> tuple[StagedFile, ...]:
        """Return all files of one copy. Their names do not contain a folder."""
        renamed_files = [replace(file, name=file.base_name) for file in self.files.get(table, ())]
        return tuple(sorted([*renamed_files, *self.kept.get(table, ())], key=lambda file: file.name))


def decision_of(run: Run) -> Decision:
    """Return the commit record of a committed run.

    :raises ManifestError: the record does not belong to this run.
    """
    assert run.commit is not None
    decision = records.read_named(Decision, run.folder, run.commit.record)
    names = [*decision.files, *decision.skipped]
    if sorted(names) != sorted(str(entry.table.name) for entry in run.manifest.tables):
        raise ManifestError(
            "the commit lists different tables than this run's manifest",
            where=run.folder.uri_of(run.commit.record),
            hint=records.HINT,
        )
    return decision


_PUBLISHED = "published.json"


@dataclass(frozen=True)
class PublishedRun:
    """What later runs need of a published run. They read this record, and not the whole ledger.

    ``first`` is the digest of the first entry of the run's ledger. It shows whether the record belongs to the run: a
    run that was removed may begin again with the same id. ``digest`` identifies the manifest (`Run.digest`).
    ``position`` is the position at which the copies are exact. ``record`` names the commit record.
    """

    first: str
    digest: str
    position: str
    record: str
    manifest: Manifest
    result: ConsolidateResult


def write_published(run: Run) -> None:
    """Write the record of a published run for later runs."""
    state, result = run.state, run.result_of(ConsolidateResult)
    if state.chain and state.commit is not None:
        published = PublishedRun(
            state.chain[0], state.digest, run.position_text, state.commit.record, run.manifest, result
        )
        records.write(run.folder, _PUBLISHED, published)


def _read_published(folder: Storage) -> Run | None:
    try:
        first = records.digest_of(folder.read_json(FIRST))
        data = folder.read_json(_PUBLISHED)
    except FileNotFoundError:
        # The run is not published, or the attempt that published it was killed before it wrote the record.
        return None
    published = records.decode(PublishedRun, data, folder.uri_of(_PUBLISHED))
    if published.first != first:
        return None
    state = State(
        chain=(first,),
        digest=published.digest,
        manifest=published.manifest,
        steps={CONSOLIDATE: published.result},
        position=published.position,
        commit=FilesCommitted(published.record, ""),
    )
    return Run(folder, published.manifest, state)


def published_run(scratch: Storage, run_id: str) -> Run:
    """Return a run that published its copies.

    :param scratch: the folder that holds the folders of runs.
    :raises ManifestError: the run does not exist, or did not publish.
    """
    folder = scratch.folder(run_id)
    run = _read_published(folder) or Run.load(folder)
    if not is_published(run) or run.commit is None:
        raise ManifestError("the run did not publish", where=folder.uri, hint="read the tables in full")
    return run


def recorded_place(scratch: Storage, run_id: str, table: TableName) -> Place | None:
    """Return the place of the data files of a table in a run that published its copies. None: the format of the lake
    has no places.

    :raises ManifestError: the run does not exist, or did not publish.
    """
    entries = published_run(scratch, run_id).manifest.tables
    return next((entry.place for entry in entries if entry.table.name == table), None)


def base_of(run: Run) -> Base:
    """Return a reference to a run's copies, for the manifest of another run."""
    assert run.commit is not None
    manifest = run.manifest
    return Base(run.position_text, manifest.identity, run.commit.record)


def read_bases(scratch: Storage, bases: Mapping[str, Base]) -> dict[str, Decision]:
    """Return the commit records of a run's bases, by the base's run id.

    :raises ManifestError: a base no longer exists, or is not the run that the manifest names.
    """
    decisions = {}
    for run_id, base in bases.items():
        run = published_run(scratch, run_id)
        # The identity may be that of a server that took over. The name of the record has a digest of its contents.
        if replace(base_of(run), identity=base.identity) != base:
            raise ManifestError(
                "this run chose to roll forward the copies of its base run, but the base run was replaced later",
                where=run.folder.uri,
                hint="trigger a new run",
            )
        decisions[run_id] = decision_of(run)
    return decisions
