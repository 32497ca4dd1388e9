"""Gathers the facts for the certificates of a run's copies."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_cdc import __version__
from airflow_provider_cdc.core.certificate.proof import Column, Proof
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.jobs.certificate.derive import derive
from airflow_provider_cdc.jobs.certificate.scrub import Scrubbed
from airflow_provider_cdc.jobs.changes.net_change_files import NetChange
from airflow_provider_cdc.jobs.runtime.step import Step


def prove(
    step: Step,
    change: NetChange,
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
            columns=tuple(Column(field.name, str(field.type)) for field in step.files_of(index).published),
            derivation=derivations.get(index),
            seen={name: seen for name, seen in scrubbed.seen.get(index, {}).items() if name in kept_names},
            scrubbed=len(checked),
            scrubbed_bytes=sum(part.bytes for file in checked for part in file.parts),
        )
    return proofs


def versions(step: Step) -> dict[str, str]:
    """Return the versions of the programs that make the copies."""
    server = step.manifest.identity.get("version", "")
    return {
        **({step.manifest.kind: server} if server else {}),
        "airflow-provider-cdc": __version__,
        "pyarrow": str(pa.__version__),
        "python": platform.python_version(),
    }
