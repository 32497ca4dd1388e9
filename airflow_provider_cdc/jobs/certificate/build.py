"""Derives the digest of a copy that is rolled forward from its base and the log, and compares it with the files.

The digest is a sum over rows. So the digest at the new position is the base's digest, plus the digest of the rows that
the net change adds, minus the digest of the rows that it removes. This counts every change once, and does not depend on
the files that the roll-forward wrote.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc import __version__
from airflow_provider_cdc.core.digest.digest import digest
from airflow_provider_cdc.core.digest.totals import CertificateColumn, Counted, Derivation, Digest, Proof
from airflow_provider_cdc.core.parquet.writer import total_of
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.jobs.apply.rolled_file import FOREIGN
from airflow_provider_cdc.jobs.certificate.scrub import Scrubbed
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import decode_published
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles, bucket_ranges
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import BUCKETS

ROWS_PER_TASK = 250_000
DECODED_ROWS = 65_536
TASKS_PER_SLOT = 4


@dataclass(frozen=True)
class CertificateEffect:
    """The rows that the window removes from one table, and the rows that it adds."""

    removed: Digest = field(default_factory=Digest)
    added: Digest = field(default_factory=Digest)


@dataclass(frozen=True)
class DigestChanges:
    """A task that computes the effect of the changes in some buckets of one table. Spark sends it to executors."""

    staging: Staging
    source: Source
    tables: tuple[RunTable, ...]
    change: NetChangeFiles

    def __call__(self, order: tuple[int, tuple[int, int]]) -> CertificateEffect:
        index, buckets = order
        removed, added = Digest(), Digest()
        with self.staging.reading():
            columns = ["was", "now", "count"]
            folder, files = self.staging.folder, self.change.files
            for batch in net_change_files.read(folder, files, columns, table=index, buckets=buckets):
                for start in range(0, batch.num_rows, DECODED_ROWS):
                    part = batch.slice(start, DECODED_ROWS)
                    if self.tables[index].table.keyless:
                        gone, come = self._counted(index, part)
                    else:
                        gone, come = self._digest(index, part["was"]), self._digest(index, part["now"])
                    removed, added = removed + gone, added + come
        return CertificateEffect(removed, added)

    def _digest(self, index: int, images: pa.BinaryArray) -> Digest:
        return digest(decode_published(self.source, self.tables[index].table, images.drop_null(), {}))

    def _counted(self, index: int, part: pa.RecordBatch) -> tuple[Digest, Digest]:
        """Return the rows that a keyless table loses and gets. ``now`` has the row, and ``count`` how many of it."""
        removed, added = Digest(), Digest()
        for count in pc.unique(part["count"]).to_pylist():
            total = self._digest(index, part.filter(pc.equal(part["count"], count))["now"]) * abs(count)
            if count < 0:
                removed += total
            else:
                added += total
        return removed, added


def derive(
    step: Step,
    change: NetChangeFiles,
    bases: Mapping[int, Sequence[StagedFile]],
    copies: Mapping[int, Sequence[StagedFile]],
) -> dict[int, Derivation]:
    """Derive the digest of each copy that was rolled forward, and compare it with the digests of its files.

    :param bases: the files of the bases, by the table's index.
    :param copies: the files of the new copies, by the table's index.
    :raises CopyMismatch: the files of a copy have other rows than its base and the log.
    """
    before = {index: total_of(bases[index]) for index in copies if index in bases}
    after = {index: total_of(copies[index]) for index in before}
    reasons = {index: _impossible(step, index, before[index], after[index]) for index in before}
    possible = [index for index in before if not reasons[index]]
    orders = [
        (index, buckets)
        for index in possible
        if change.keys(index)
        for buckets in bucket_ranges(_tasks(step, change.keys(index)))
    ]
    effects = dict.fromkeys(possible, CertificateEffect())
    work = DigestChanges(step.staging, step.source, step.tables, change)
    done = run_tasks(step.spark, "digest the changes", orders, work, size=change.size()) if orders else []
    for (index, _), effect in zip(orders, done, strict=True):
        so_far = effects[index]
        effects[index] = CertificateEffect(so_far.removed + effect.removed, so_far.added + effect.added)
    derivations = {}
    for index in before:
        base, found, run_id = before[index], after[index], step.tables[index].base
        if reasons[index] or base is None or found is None:
            derivations[index] = Derivation(run_id, impossible=reasons[index])
            continue
        effect = effects[index]
        _check(step.tables[index], base + effect.added - effect.removed, found)
        derivations[index] = Derivation(run_id, _count_of(base), _count_of(effect.removed), _count_of(effect.added))
    return derivations


def _impossible(step: Step, index: int, base: Digest | None, found: Digest | None) -> str:
    if step.manifest.at_upper:
        return "touched rows were read again, because the log does not have the old rows of all tables of the run"
    if step.tables[index].table.eras:
        return "the columns of the table were changed since the last copy"
    if base is None or found is None:
        return "an earlier version of this package wrote files without digests"
    return ""


def _tasks(step: Step, keys: int) -> int:
    return min(BUCKETS, step.slots * TASKS_PER_SLOT, 1 + keys // ROWS_PER_TASK)


def _check(entry: RunTable, expected: Digest, found: Digest) -> None:
    if expected == found:
        return
    if expected.rows != found.rows:
        what = f"they have {format_count(found.rows, 'row')}, not {expected.rows:,}"
    else:
        what = f"of their {format_count(found.rows, 'row')}, some differ (digest {found.hex}, not {expected.hex})"
    raise CopyMismatch(
        f"the files of the new copy contradict the last copy and the log: {what}",
        where=str(entry.table.name),
        hint=FOREIGN,
    )


def _count_of(digest_of_rows: Digest) -> Counted:
    return Counted(digest_of_rows.rows, digest_of_rows.hex)


# Gathers the facts for the certificates of a run's copies.


def build_certificates(
    step: Step,
    change: NetChangeFiles,
    scrubbed: Scrubbed,
    written: Mapping[int, Sequence[StagedFile]],
    kept: Mapping[int, Sequence[StagedFile]],
) -> dict[str, Proof]:
    """Check the totals of the copies that were rolled forward, and return the facts about each copy, by table name.

    :param written: the files that the run wrote, by the table's index.
    :param kept: the files that the copies take over from their bases, by the table's index.
    :raises CopyMismatch: the files of a copy have other rows than its base and the log.
    """
    bases = {index: [one.file for one in files] for index, files in scrubbed.bases.items()}
    copies = {index: [*files, *kept.get(index, ())] for index, files in written.items()}
    derivations = derive(step, change, bases, copies)
    proofs = {}
    for index in written:
        checked = scrubbed.checked.get(index, ())
        kept_names = {file.name for file in kept.get(index, ())}
        proofs[str(step.tables[index].table.name)] = Proof(
            columns=tuple(CertificateColumn(field.name, str(field.type)) for field in step.files_of(index).published),
            derivation=derivations.get(index),
            seen={name: seen for name, seen in scrubbed.seen.get(index, {}).items() if name in kept_names},
            scrubbed=len(checked),
            scrubbed_bytes=sum(part.bytes for file in checked for part in file.parts),
        )
    return proofs


def versions(step: Step) -> dict[str, str]:
    """Return the versions of the programs that make the copies."""
    server = step.manifest.identity.version
    return {
        **({step.manifest.kind: server} if server else {}),
        "airflow-provider-cdc": __version__,
        "pyarrow": str(pa.__version__),
        "python": platform.python_version(),
    }
