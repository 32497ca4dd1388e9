"""Keeps sessions open, so that several readers can use them one after the other. Opening a session takes longer than
reading a small table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

Session = TypeVar("Session")


class Kept:
    """The open sessions of one Spark task or of one thread. The sessions are never used concurrently."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ExitStack, Any]] = {}

    @contextmanager
    def use(self, kind: str, opened: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
        """Return a context with the kept session of this kind. If the block raises an error, the session is closed, and
        the next call opens a new session.

        An error in the block is also passed to the context manager that ``opened`` returned.
        """
        if kind not in self._open:
            stack = ExitStack()
            self._open[kind] = stack, stack.enter_context(opened())
        stack, session = self._open[kind]
        try:
            yield session
        except BaseException:
            del self._open[kind]
            stack.__exit__(*sys.exc_info())
            raise

    def close(self) -> None:
        """Close all sessions."""
        while self._open:
            stack, _ = self._open.popitem()[1]
            stack.close()


@contextmanager
def keeping() -> Iterator[Kept]:
    """Yield a `Kept`, and close its sessions at the end of the block."""
    sessions = Kept()
    try:
        yield sessions
    finally:
        sessions.close()


def session_of(
    kept: Kept | None, kind: str, opened: Callable[[], AbstractContextManager[Session]]
) -> AbstractContextManager[Session]:
    """Return a context with the kept session of this kind, or with a new session if ``kept`` is None."""
    return opened() if kept is None else kept.use(kind, opened)
