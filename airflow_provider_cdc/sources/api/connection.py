"""The settings of a connection to a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ConnectionSettings:
    """The settings of a connection to a source. ``password`` never appears in a repr. ``options`` has settings that are
    specific to one kind of source, such as ``publication`` (the name of an existing publication).

    ``tls`` has paths and modes for the driver: ``mode`` (``disabled``, ``preferred``, ``required``, ``verify_ca``,
    ``verify_identity``), ``ca``, ``cert`` and ``key``. ``sources.session`` and the kind of source define more
    fields.
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
        """``user@host:port``, for messages."""
        return f"{self.user}@{self.host}:{self.port}"
