"""What consolidate found out about the copies that it staged, for their certificates. These records are part of the
commit."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """A published column, with its Arrow type as text."""

    name: str
    type: str


@dataclass(frozen=True)
class Counted:
    """The number of some rows, and their digest (`Digest.hex`)."""

    rows: int
    digest: str


@dataclass(frozen=True)
class Derivation:
    """The digest of a copy that was rolled forward, derived from its base and the log.

    ``base`` has the rows of the base, ``removed`` and ``added`` the rows that the log removes and adds. If
    ``impossible`` is not empty, it says why nothing could be derived.
    """

    base_run_id: str
    base: Counted | None = None
    removed: Counted | None = None
    added: Counted | None = None
    impossible: str = ""


@dataclass(frozen=True)
class Seen:
    """When a file of a copy was last known to be whole: it was written, or it was ``checked``, at the time ``at`` (ISO
    8601)."""

    at: str
    checked: bool = False


@dataclass(frozen=True)
class Proof:
    """The facts about one table's copy. ``seen`` has the files that it takes over from its base, by their names.
    ``scrubbed`` and ``scrubbed_bytes`` count the files that this run checked."""

    columns: tuple[Column, ...] = ()
    derivation: Derivation | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    scrubbed: int = 0
    scrubbed_bytes: int = 0
