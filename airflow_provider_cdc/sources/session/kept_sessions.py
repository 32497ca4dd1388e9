"""Sessions that serve several readers, one after the other: opening one costs more than reading a small table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

Session = TypeVar("Session")


class Kept:
    """The open sessions of one Spark task, or of one thread: never used by two at a time."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ExitStack, Any]] = {}

    @contextmanager
    def use(self, kind: str, opened: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
        """The session of this kind. If the block fails, the session is closed, and the next call opens another.

        Errors in the block pass through the context manager that ``opened`` returned, too.
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
        """End all sessions."""
        while self._open:
            stack, _ = self._open.popitem()[1]
            stack.close()


@contextmanager
def keeping() -> Iterator[Kept]:
    """A `Kept` that ends with the block."""
    sessions = Kept()
    try:
        yield sessions
    finally:
        sessions.close()


def session_of(
    kept: Kept | None, kind: str, opened: Callable[[], AbstractContextManager[Session]]
) -> AbstractContextManager[Session]:
    """The kept session of this kind, or a new one where none are kept."""
    return opened() if kept is None else kept.use(kind, opened)
