"""Publishes the files that a commit names."""

from __future__ import annotations

from airflow_provider_cdc.core.certificate.certificate import certificate_of_copy
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copy_names
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.step import sink_of
from airflow_provider_cdc.sinks.base import Publication, PublishedCopy, TableChange


def publish(run: Run, decision: Decision) -> dict[TableName, PublishedCopy]:
    """Publish the files that the commit names. Record in the run's folder which copies are now the latest copies of
    their tables."""
    manifest = run.manifest
    publication = Publication(
        run_id=run.run_id,
        staging=Staging(run.folder),
        tables=tuple(_change(run, decision, copy) for copy in published_copies(manifest, decision)),
        position_key=manifest.position_key,
        position=run.position_text,
        recorded_at=manifest.created_at,
        published_at=decision.published_at,
        source=manifest.source,
        as_of=manifest.options.as_of,
        missed_as_of=manifest.missed_as_of,
        group=manifest.group,
        skipped=(
            *(TableName.parse(name) for name in manifest.skipped),
            *copy_names(entry for entry in manifest.tables if str(entry.table.name) not in decision.files),
        ),
    )
    copies = sink_of(manifest).publish(publication)
    for table_name, copy in copies.items():
        if not copy.is_latest:
            say(
                f"consolidate: WARNING: {table_name} is published, but the latest copy of the table is still a newer "
                "copy (with a later position or of a later history)"
            )
    run.note_latest({str(name): copy.is_latest for name, copy in copies.items()})
    return copies


def _change(run: Run, decision: Decision, copy: CopyTables) -> TableChange:
    entry, names = copy.first, [str(one.table.name) for one in copy.tables]
    own = {name: (*decision.files[name], *decision.kept.get(name, ())) for name in names}
    return TableChange(
        copy.name,
        tuple(file for name in names for file in decision.files[name]),
        tuple(file for name in names for file in decision.kept.get(name, ())),
        copy.base,
        entry.table.selection.condition,
        entry.table.selection.columns,
        None if copy.merged else decision.feeds.get(names[0]),
        run.manifest.history_of(entry.table.name),
        entry.place,
        certificate_of_copy(run, decision, copy).encoded(),
        {name: frozenset(file.base_name for file in files) for name, files in own.items()} if copy.merged else {},
        None if copy.merged else decision.feed_gaps.get(names[0]),
    )
