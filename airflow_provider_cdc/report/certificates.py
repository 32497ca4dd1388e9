"""The summary of a run's certificates, as Markdown, and the section about them in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_cdc.core.certificate import Certificate, certificate_of_copy
from airflow_provider_cdc.core.digest.totals import NAME, Derivation
from airflow_provider_cdc.core.run.commit_record import Decision, decision_of
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.report.facts import Report, Section

if TYPE_CHECKING:
    pass


UNKNOWN = "not known"


_FILES = 100
"""The most files of a table that the summary lists. The certificate has all of them."""


def certificates_of(run: Run) -> list[Certificate]:
    """Return the certificates of the copies that a run published.

    :raises ManifestError: the record of the copies is damaged.
    """
    decision: Decision = decision_of(run)
    return [certificate_of_copy(run, decision, copy) for copy in published_copies(run.manifest, decision)]


def certificate_section(run: Run) -> Section:
    """Return the section of the report with the totals of all copies."""
    rows = tuple(
        (one.table, f"{one.rows:,}", one.digest or UNKNOWN, derived(one), f"{len(one.files):,}", f"{one.scrubbed:,}")
        for one in certificates_of(run)
    )
    header = ("table", "rows", "digest", "checked against", "files", "unchanged files read again")
    note = f"Digests of whole rows, by the definition {NAME}. The certificates of the copies have those of each file."
    return Section("Certificates", header, rows, note)


def derived(certificate: Certificate) -> str:
    """Say what the total of a copy was checked against."""
    if certificate.shards:
        return "; ".join(sorted({_derived(part.derivation) for part in certificate.shards}))
    return _derived(certificate.derivation)


def _derived(derivation: Derivation | None) -> str:
    if derivation is None:
        return "its files: the table was read"
    if derivation.impossible:
        return f"its files: {derivation.impossible}"
    return "the last copy and the log"


def certificate_page(run: Run) -> Report:
    """Return the summary of the certificates of a published run."""
    certificates = certificates_of(run)
    manifest = run.manifest
    about = (
        ("run", run.run_id),
        *((f"source: {name}", value) for name, value in manifest.source.items()),
        (manifest.position_key, run.position_text),
        ("position recorded at", manifest.created_at),
        *((("requested", manifest.options.as_of),) if manifest.options.as_of else ()),
        *((("published at", certificates[0].published_at),) if certificates else ()),
        *((f"version: {name}", value) for name, value in (certificates[0].versions.items() if certificates else ())),
        *((f"left out: {name}", why) for name, why in manifest.skipped.items()),
    )
    note = "All copies are exact at the position. A digest is a sum over whole rows, modulo 2^128."
    sections = [Section("The run", ("", ""), about, note), certificate_section(run)]
    for one in certificates:
        sections += [_made(one), _files(one)]
    return Report(
        f"Certificates of {format_count(len(certificates), 'copy', 'copies')}, run {run.run_id}", tuple(sections)
    )


def _made(one: Certificate) -> Section:
    made, derivation = one.made, one.derivation
    if one.shards:
        return _merged_certificate(one)
    rows = [
        ("rows", f"{one.rows:,}"),
        ("digest", one.digest or UNKNOWN),
        ("key", ", ".join(one.key) or "none"),
        ("made by", f"{made.mode} ({made.consistency}: {made.why})"),
        ("log", f"{made.direction}, {made.window_from} to {made.window_to}"),
        *((("rows where", one.where),) if one.where else ()),
        *((policy, str(value)) for policy, value in one.policies.items() if policy != "tables_left_out"),
    ]
    if derivation is not None and derivation.base and derivation.removed and derivation.added:
        for what, part in (("base", derivation.base), ("removed", derivation.removed), ("added", derivation.added)):
            rows.append((f"derivation: {what}", f"{format_count(part.rows, 'row')}, {part.digest}"))
    return Section(one.table, ("", ""), tuple(rows))


def _merged_certificate(one: Certificate) -> Section:
    rows = [
        ("rows", f"{one.rows:,}"),
        ("digest", one.digest or UNKNOWN),
        ("key", ", ".join(one.key)),
        ("made by", one.made.why),
        *((("rows where", one.where),) if one.where else ()),
    ]
    for part in one.shards:
        made = f"{part.made.mode} ({part.made.consistency}: {part.made.why})"
        log = f"{part.made.direction}, {part.made.window_from} to {part.made.window_to}"
        rows.append(
            (f"shard {part.shard}", f"{format_count(part.rows, 'row')}, {part.digest or UNKNOWN}; {made}; {log}")
        )
        rows += [(f"shard {part.shard}: {policy}", str(value)) for policy, value in part.policies.items()]
    return Section(one.table, ("", ""), tuple(rows))


def _files(one: Certificate) -> Section:
    rows = tuple(
        (
            file.name,
            f"{file.rows - file.deleted_rows:,}",
            " to ".join(file.keys),
            file.digest or UNKNOWN,
            file.checksum,
            file.whole_at if file.kept else "written by this run",
        )
        for file in one.files[:_FILES]
    )
    more = len(one.files) - _FILES
    note = f"{format_count(more, 'more file')}: see the certificate." if more > 0 else ""
    header = ("file", "rows", one.key[0] if one.key else "key", "digest", "CRC-32", "last known to be whole")
    return Section(f"Files of {one.table}", header, rows, note)
