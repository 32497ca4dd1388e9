"""A protocol for sources that keep sessions open between reads."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ClosesIdle(Protocol):
    """A source that can close the sessions that `ReadsTables.one_session` keeps open."""

    def close_idle(self) -> None:
        """Close the sessions that are kept open. No reader may be open. The next reader opens a new session."""
