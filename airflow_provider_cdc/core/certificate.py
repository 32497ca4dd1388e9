"""The certificate of a copy: a JSON file that says what the copy contains, at which position, and how it was made.

It is ``_certificates/<run_id>.json`` in the table's folder of the lake (`sinks.beside_copies`). With Iceberg, the
snapshot and the cut have its total, too. Certificates are public: other programs may read them, and other versions of
this package may have written them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_cdc.core.digest.totals import NAME, CertificateColumn, Derivation, Proof
from airflow_provider_cdc.core.parquet.writer import StagedFile, total_of
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.shards.copy_tables import CopyTables
from airflow_provider_cdc.core.storage import records

FORMAT = 1


@dataclass(frozen=True)
class File:
    """A file of a copy.

    ``digest`` is the digest of all of its rows; empty: it is not known. ``deleted_rows`` and ``deleted_digest`` are of
    the rows that are deleted by position (Iceberg). ``keys`` has the least and the greatest value of the first key
    column, or is empty. ``kept`` says whether the file is from the base copy. Such a file was last known to be whole at
    ``whole_at`` (ISO 8601). ``shard`` names the shard of a merged table.
    """

    name: str
    rows: int
    bytes: int
    checksum: str
    digest: str
    deleted_rows: int = 0
    deleted_digest: str = ""
    keys: tuple[str, ...] = ()
    kept: bool = False
    whole_at: str = ""
    shard: str = ""


@dataclass(frozen=True)
class Making:
    """How a copy was made.

    ``mode`` is ``read`` or ``roll forward``, with the consistency and the reason (``why``). The log between the
    positions ``window_from`` and ``window_to`` was applied in the ``direction`` ``back`` (a rewind), ``forward``, or
    ``again`` (the touched rows were read again). ``window_to`` may be a place in the log.
    """

    mode: str
    consistency: str
    why: str
    direction: str
    window_from: str
    window_to: str
    base_run_id: str = ""


@dataclass(frozen=True)
class ShardPart:
    """The part of a merged table's copy that is one shard: the number and the digest of its rows, and how it was
    made."""

    shard: str
    rows: int
    digest: str
    made: Making
    derivation: Derivation | None = None
    policies: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """The certificate of one table's copy.

    ``definition`` names the definition of the digests, ``digest`` is the digest of all ``rows``; empty: it is not
    known. ``policies`` has the rules that had an effect on this copy, such as ``nulled``, the number of values that
    became null, by column. ``versions`` are the versions of the programs that made the copy. ``shards`` has the shards
    of a merged table. Its ``derivation`` and the details of how it was ``made`` are those of the shards. If the shards
    are in several sources, ``positions`` has the position of each source, and ``position`` is empty.
    """

    table: str
    run_id: str
    position_key: str
    position: str
    recorded_at: str
    published_at: str
    source: dict[str, str]
    history: dict[str, Any]
    made: Making
    key: tuple[str, ...]
    columns: tuple[CertificateColumn, ...]
    rows: int
    digest: str
    files: tuple[File, ...]
    derivation: Derivation | None = None
    where: str = ""
    as_of: str = ""
    policies: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    scrubbed: int = 0
    scrubbed_bytes: int = 0
    shards: tuple[ShardPart, ...] = ()
    positions: tuple[dict[str, Any], ...] = ()
    definition: str = NAME
    format: int = FORMAT

    def encoded(self) -> dict[str, Any]:
        """Return the JSON data of the certificate."""
        data: dict[str, Any] = records.encode(self)
        return data


def decode_certificate(data: Any, where: str) -> Certificate:
    """Decode the certificate in JSON data. Fields that a later version added are ignored.

    :param where: the name of the certificate in an error.
    :raises ManifestError: the data is not a certificate.
    """
    known = set(Certificate.__dataclass_fields__)
    data = {name: value for name, value in data.items() if name in known} if isinstance(data, dict) else data
    return records.decode(Certificate, data, where)


def certificate_of(run: Run, decision: Decision, entry: RunTable) -> Certificate:
    """Return the certificate of one table's copy. It depends on the run's records only."""
    name, manifest = str(entry.table.name), run.manifest
    proof = decision.proofs.get(name, Proof())
    files = [(file, False) for file in decision.files[name]] + [(file, True) for file in decision.kept.get(name, ())]
    total = total_of(file for file, _ in files)
    return Certificate(
        table=name,
        run_id=run.run_id,
        position_key=manifest.position_key,
        position=run.position_text,
        recorded_at=manifest.created_at,
        published_at=decision.published_at,
        source=manifest.source,
        history=manifest.history_of(entry.table.name),
        made=_making(run, entry),
        key=tuple(entry.table.key),
        columns=proof.columns,
        rows=decision.rows[name],
        digest="" if total is None else total.hex,
        files=tuple(sorted((_file(file, kept, proof) for file, kept in files), key=lambda file: file.name)),
        derivation=proof.derivation,
        where=entry.table.selection.condition,
        as_of=manifest.options.as_of,
        policies=_policies(run, decision, name),
        versions=decision.versions,
        scrubbed=proof.scrubbed,
        scrubbed_bytes=proof.scrubbed_bytes,
    )


def certificate_of_copy(run: Run, decision: Decision, copy: CopyTables) -> Certificate:
    """Return the certificate of a copy: of one table, or of a merged table."""
    parts = [certificate_of(run, decision, entry) for entry in copy.tables]
    if not copy.merged:
        return parts[0]
    names = [str(entry.table.name) for entry in copy.tables]
    total = total_of(file for name in names for file in (*decision.files[name], *decision.kept.get(name, ())))
    files = [replace(file, shard=part.table) for part in parts for file in part.files]
    why = f"merged from {len(parts):,} shards"
    return replace(
        parts[0],
        table=str(copy.name),
        made=Making("merge", "", why, "", "", parts[0].position, copy.base),
        key=copy.first.table.published_key,
        rows=sum(part.rows for part in parts),
        digest="" if total is None else total.hex,
        files=tuple(sorted(files, key=lambda file: file.name)),
        derivation=None,
        policies={},
        scrubbed=sum(part.scrubbed for part in parts),
        scrubbed_bytes=sum(part.scrubbed_bytes for part in parts),
        shards=tuple(
            ShardPart(part.table, part.rows, part.digest, part.made, part.derivation, part.policies) for part in parts
        ),
    )


def _file(file: StagedFile, kept: bool, proof: Proof) -> File:
    seen = proof.seen.get(file.base_name)
    return File(
        name=file.base_name,
        rows=file.rows,
        bytes=file.bytes,
        checksum=file.checksum,
        digest=file.digest,
        deleted_rows=file.rows - file.live_rows,
        deleted_digest="" if file.deletes is None else file.deletes.digest,
        keys=file.keys,
        kept=kept,
        whole_at="" if seen is None else seen.at,
    )


def _making(run: Run, entry: RunTable) -> Making:
    manifest, read = run.manifest, run.result_of(SnapshotResult)
    mode, direction, window_from, window_to = "read", "forward", manifest.initial_position, run.position_text
    if entry.base:
        mode, window_from = "roll forward", manifest.bases[entry.base].position
    elif entry.basis is not None:
        window_from = manifest.all_starts[entry.start].position
    else:
        direction = "again" if manifest.at_upper else "back"
        window_to = read.snapshot_upper or str(read.log_end)
    return Making(mode, entry.consistency, entry.reason, direction, window_from, window_to, entry.base)


def _policies(run: Run, decision: Decision, name: str) -> dict[str, Any]:
    manifest = run.manifest
    nulled: dict[str, int] = {}
    for found in (run.result_of(SnapshotResult).nulled, decision.nulled):
        for column, count in found.get(name, {}).items():
            nulled[column] = nulled.get(column, 0) + count
    history = manifest.histories.get(name)
    ended = None if history is None else history.ended_by(run.run_id)
    left_out = {**manifest.skipped, **decision.skipped}
    fired = {
        "nulled": nulled,
        "missed_as_of": manifest.missed_as_of,
        "read_again": [restart.tables[name] for restart in manifest.restarts if name in restart.tables],
        "history_begins": "" if ended is None else ended.why,
        "tables_left_out": left_out,
    }
    return {policy: value for policy, value in fired.items() if value}
