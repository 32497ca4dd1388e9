"""What a run may be asked to do."""

from __future__ import annotations

from dataclasses import dataclass

CONSISTENCIES = ("auto", "watermark", "lock", "exported")

UNREPRESENTABLE = ("error", "null", "string")
"""What to do with values that no Arrow type holds (a zero date, a DECIMAL of 65 digits, an infinite timestamp): stop,
publish null, or publish the column as the text that the source prints. ``null`` stops, too, where the value is part of
what tells rows apart: in a key column, and in every column of a keyless table."""


@dataclass(frozen=True)
class LockPolicy:
    """How the short lock is taken: each try waits at most ``wait_seconds``, after which everybody else goes first.

    ``through_read`` keeps the lock until the table is read, for servers whose read views need that.
    ``slot_wait_seconds`` is how long a replication slot may wait for transactions that write: nobody waits for it.
    """

    wait_seconds: int = 5
    tries: int = 12
    pause_seconds: float = 2.0
    through_read: bool = False
    slot_wait_seconds: int = 600
