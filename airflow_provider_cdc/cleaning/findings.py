"""The things that `Cleaner` finds, with the proof that each can be removed, or the reason why it stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_cdc.counted import format_count

RUN, WORK_FILES, PLACED, FILE, VERIFICATION = "run", "work files", "half-placed copies", "file", "verification"
"""The kinds of leftovers in the lake. Those on the server are in `sources.api.starts`."""

SHOWN = 200


@dataclass(frozen=True)
class Leftover:
    """Something that a run left behind.

    :param kind: one of the kinds above, or a kind of `sources.api.starts`.
    :param what: the URI of a folder or file, or the name of an object on the server.
    :param run_id: the run; empty: unknown.
    :param bytes: the size of the files, or of the log that the server keeps.
    :param why: the proof that the run has ended, or the reason why the leftover stays.
    """

    kind: str
    what: str
    run_id: str
    bytes: int
    why: str

    def __str__(self) -> str:
        size = f", {format_count(self.bytes, 'byte')}" if self.bytes else ""
        return f"{self.kind} {self.what}{size}: {self.why}"


@dataclass(frozen=True)
class Removal:
    """A leftover that can be removed. ``remove`` proves it again, removes it, and returns why it stays; empty: it was
    removed."""

    leftover: Leftover
    remove: Callable[[], str]


@dataclass(frozen=True)
class CleaningReport:
    """The result of a clean-up. With ``dry_run``, ``removed`` are the leftovers that would have been removed."""

    removed: tuple[Leftover, ...]
    kept: tuple[Leftover, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The size of the removed files. The log that a server keeps is not included."""
        return sum(one.bytes for one in self.removed if one.kind in (RUN, WORK_FILES, PLACED, FILE, VERIFICATION))

    def data(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        lists = {"removed": [asdict(one) for one in self.removed], "kept": [asdict(one) for one in self.kept]}
        return {**lists, "bytes": self.bytes, "dry_run": self.dry_run}

    def lines(self) -> list[str]:
        """Return the report as text."""
        verb = "would be removed" if self.dry_run else "removed"
        return [
            f"{format_count(len(self.removed), 'leftover')} {verb}, {format_count(self.bytes, 'byte')} in the lake",
            *_listed(self.removed),
            f"{format_count(len(self.kept), 'leftover')} kept",
            *_listed(self.kept),
        ]


def _listed(found: Sequence[Leftover]) -> list[str]:
    more = [f"  and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
    return [f"  {one}" for one in found[:SHOWN]] + more
