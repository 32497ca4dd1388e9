"""The replication slots and publications that ended runs left on the source's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_cdc.cleaning.findings import KnownRuns, Leftover, Removal
from airflow_provider_cdc.core.liveness import DagRunNames
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.source import SLOT, KeptObject, Source

IsOfTarget = Callable[[KeptObject], bool]
"""Returns whether an object was created by a run that publishes in the target, according to the names on the object."""


@dataclass(frozen=True)
class ServerObjects:
    """The objects that the server keeps for runs. They were listed before the runs were judged, so the objects of a run
    that starts again meanwhile are not among them.

    :param problem: why the objects are unknown; empty: they are known.
    """

    source: Source | None = None
    objects: tuple[KeptObject, ...] = ()
    problem: str = ""

    @classmethod
    def listed(cls, source: Source | None, run_ids: Sequence[str]) -> ServerObjects:
        """List the objects of a source's server."""
        if source is None:
            return cls(problem="no connection to the source was given")
        try:
            # Slots first: later releases drop publications.
            return cls(source, tuple(sorted(source.kept_objects(run_ids), key=lambda one: one.kind != SLOT)))
        except CdcError as error:
            return cls(problem=f"the slots of the server could not be listed: {error.message}")

    def without(self, run_ids: Sequence[str]) -> ServerObjects:
        """Return the objects of other runs."""
        return replace(self, objects=tuple(one for one in self.objects if one.run_id not in run_ids))

    def of_run(self, run_id: str) -> list[KeptObject]:
        return [one for one in self.objects if one.run_id == run_id]

    def user_of(self, run_id: str) -> str:
        """Return the session that uses an object of a run; empty: there is none, as far as is known."""
        return next((f"session {one.pid} reads from the slot {one.name}" for one in self.of_run(run_id) if one.pid), "")

    def drop_all(self, run_id: str) -> str:
        """Drop the objects of a run. Return why some of them stay; empty: all are gone."""
        return "; ".join(filter(None, (self.drop(one) for one in self.of_run(run_id))))

    def drop(self, one: KeptObject) -> str:
        """Drop one object. Return why it stays; empty: it is gone."""
        return self.source.drop_unused(one) if self.source is not None else self.problem


def leftovers_on_server(
    server: ServerObjects, known: KnownRuns, is_of_target: IsOfTarget
) -> Iterator[Removal | Leftover]:
    """Yield the objects of published runs and of runs without a folder. The objects of an unpublished run are removed
    with its folder."""
    for one in server.objects:
        proof, reason = _judged(one, known, is_of_target)
        if proof and not one.pid:
            yield Removal(_leftover(one, proof), partial(server.drop, one))
        elif proof or reason:
            yield _leftover(one, f"session {one.pid} uses it" if one.pid else reason)


def _judged(one: KeptObject, known: KnownRuns, is_of_target: IsOfTarget) -> tuple[str, str]:
    """Return the proof that no run needs an object, or else the reason for the doubt. Both are empty if a run uses the
    object."""
    run = known.runs.get(one.run_id)
    if run is not None:
        return _judged_by_run(run, known)
    if one.run_id in known.unreadable:
        return "", f"its run cannot be read: {known.unreadable[one.run_id]}"
    if not one.run_id or not one.dag_id:
        return "", "the run that created it is unknown"
    if not is_of_target(one):
        return "", f"it is not proven that its run {one.run_id} publishes in this target"
    names = DagRunNames(one.dag_id, one.dag_run_id, one.task_id)
    state = known.rules.state_of(names)
    if state.over:
        return f"DAG run {names} {state.text}, and its run recorded nothing in this target", ""
    return "", f"DAG run {names} {state.text}" if state.known else f"Airflow does not know the DAG run {names}"


def _judged_by_run(run: Run, known: KnownRuns) -> tuple[str, str]:
    if not is_published(run):
        return "", ""
    if run.manifest.options.keep_slot:
        return "", "`Read.keep_slot` of its run keeps it"
    if not known.is_settled(run):
        return "", ""
    return "its run is published", ""


def _leftover(one: KeptObject, why: str) -> Leftover:
    return Leftover(one.kind, one.name, one.run_id, one.bytes, why)
