"""How a source is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ConnectionSettings:
    """How to reach a source. ``password`` never shows in a repr. ``options`` is what else one kind of source needs to
    be told, such as a ``publication`` that exists already.

    ``tls`` holds paths and modes for the driver: ``mode`` (``disabled``, ``preferred``, ``required``, ``verify_ca``,
    ``verify_identity``), ``ca``, ``cert``, ``key``, and what ``sources.trust`` and the kind of source add to them.
    """

    kind: str
    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """``user@host:port``, fit for messages."""
        return f"{self.user}@{self.host}:{self.port}"
