"""A run's durable record.

``<target>/_runs/<run_id>/manifest.json`` is written by ``lock_and_record`` and extended by each later step. It says
what the run copies, from where, at which position, and what each finished step found. Whatever a step did that is not
in here (or in a record that the step's own documentation names) did not happen: a retry does it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.head import source_of
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import ManifestError

FORMAT = 1
FILE = "manifest.json"


@dataclass(frozen=True)
class RunTable:
    """A table of the run: its schema at the initial position, how it is read, and why so."""

    table: Table
    consistency: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"table": self.table.to_json(), "consistency": self.consistency, "reason": self.reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunTable:
        return cls(Table.from_json(data["table"]), data["consistency"], data["reason"])


@dataclass
class Manifest:
    """The record of one run.

    ``steps`` maps a finished step's task_id to what it found; JSON only. ``options`` are the run's settings that later
    steps need. ``identity`` is the source's, as ``Source.record_initial`` gave it; ``source_conn_id`` names the
    connection to it. It holds no secret.
    """

    run_id: str
    kind: str
    position_key: str
    initial_position: str
    identity: dict[str, str]
    created_at: str
    tables: list[RunTable]
    options: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    source_conn_id: str = ""

    @property
    def source(self) -> dict[str, str]:
        """What the run's copies say of their source."""
        return source_of(self.kind, self.identity, self.source_conn_id)

    def save(self, run: Storage) -> None:
        """Write it under ``run`` (the run's own folder), all or nothing."""
        run.write_json(
            FILE,
            {
                "format": FORMAT,
                "run_id": self.run_id,
                "target": _target(run),
                "source_conn_id": self.source_conn_id,
                "kind": self.kind,
                "position_key": self.position_key,
                "initial_position": self.initial_position,
                "identity": self.identity,
                "created_at": self.created_at,
                "tables": [table.to_json() for table in self.tables],
                "options": self.options,
                "steps": self.steps,
            },
        )

    def finish_step(self, run: Storage, task_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """Record that a step is done and what it found, and return what counts.

        Another try of the step, thought dead, may have been quicker. Then what that one found counts, since later steps
        may rest on it.
        """
        self.steps = Manifest.load(run).steps
        if task_id not in self.steps:
            self.steps[task_id] = found
            self.save(run)
        return self.steps[task_id]

    @classmethod
    def exists(cls, run: Storage) -> bool:
        return run.exists(FILE)

    @classmethod
    def load(cls, run: Storage) -> Manifest:
        """Read the manifest under ``run``.

        :raises ManifestError: there is none, it is of another run or target, or this version cannot read it.
        """
        if not run.exists(FILE):
            raise ManifestError(
                "there is no manifest",
                where=run.uri,
                hint="clear lock_and_record and the tasks after it: it writes the manifest",
            )
        data = run.read_json(FILE)
        if data.get("format") != FORMAT:
            raise ManifestError(
                f"the manifest has format {data.get('format')!r}; this version reads {FORMAT}",
                where=run.uri,
                hint="finish the run with the version that began it, or trigger a new run",
            )
        _check_own(run, data)
        try:
            return cls(
                data["run_id"],
                data["kind"],
                data["position_key"],
                data["initial_position"],
                data["identity"],
                data["created_at"],
                [RunTable.from_json(table) for table in data["tables"]],
                data["options"],
                data["steps"],
                data.get("source_conn_id", ""),
            )
        except (KeyError, TypeError) as error:
            raise ManifestError(
                f"the manifest is damaged: {error!r}",
                where=run.uri,
                hint="remove the run's folder and trigger a new run",
            ) from error


def _target(run: Storage) -> str:
    return run.parent().parent().uri


def _check_own(run: Storage, data: Mapping[str, Any]) -> None:
    expected = {"run_id": run.uri.rpartition("/")[2], "target": _target(run)}
    # Earlier versions did not record the target.
    wrong = [name for name, own in expected.items() if data.get(name, own) != own]
    if wrong:
        raise ManifestError(
            f"the manifest is another run's: its {' and its '.join(f'{name} is {data[name]!r}' for name in wrong)}",
            where=run.uri,
            hint="somebody copied or moved it here: remove the run's folder and trigger a new run",
        )
