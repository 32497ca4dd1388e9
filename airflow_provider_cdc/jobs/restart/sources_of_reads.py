"""Groups tables by the manifest under which their reads began.

Each manifest has its own position, and on PostgreSQL its own slot and publication. The log of a table comes from those
of the manifest under which the table was read. So the checks of a table need the source as of that manifest, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.spool_chain import reaching
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool.kept_pieces import last_piece_of
from airflow_provider_cdc.sources.api.source import Source


@dataclass(frozen=True)
class ReadsOfManifest:
    """The tables of a step whose reads began under one manifest, and the ``source`` as of this manifest. ``check``
    raises an error if the server, the slot or the publication of this manifest was changed.

    ``key`` is the key of `Manifest.earlier_reads`. It is empty for the present manifest."""

    key: str
    source: Source
    entries: tuple[RunTable, ...]
    identity: dict[str, str]
    position: str

    def check(self, kind: str) -> None:
        """Check that the log has been complete since the reads began.

        :raises LogGone: the source no longer has the log.
        :raises ExactnessError: the source or its settings were changed, so the log may lack changes.
        """
        check = partial(self.source.check_identity, self.identity, parse_position(kind, self.position))
        persist("check the source since the earlier reads", check)


def by_manifest(step: Step, entries: Iterable[RunTable]) -> Iterator[ReadsOfManifest]:
    """Yield ``entries`` in groups, one for each manifest. Tables that are read under the present manifest, or that are
    rolled forward from a copy, belong to the present manifest."""
    manifest, groups = step.manifest, dict[str, list[RunTable]]()
    for entry in entries:
        groups.setdefault(entry.read_in if entry.read_in in manifest.earlier_reads else "", []).append(entry)
    for key, group in groups.items():
        if not key:
            identity, position, source = step.run.expected_identity(), manifest.initial_position, step.source
        else:
            identity, position = manifest.earlier_reads[key].identity, manifest.earlier_reads[key].position
            last = last_piece_of(step, key)
            if last is not None:
                identity = reaching(identity, last)
            source = step.source.of_run(identity, parse_position(manifest.kind, position))
            if last is None:
                # The facts about the tables were renewed when the run moved.
                source = source.with_facts_of(manifest.identity)
        yield ReadsOfManifest(key, source, tuple(group), identity, position)
