"""A REST catalog whose requests have time-outs. PyIceberg's own client sets no time-out."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

TIMEOUT = "cdc.request-timeout-seconds"
"""The catalog property that sets the time-out of requests, in seconds."""
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""The default of `TIMEOUT`. If a commit takes longer, the run checks whether it succeeded, as after a lost answer."""


class RestCatalogWithTimeouts(RestCatalog):
    """PyIceberg's REST catalog, with time-outs on all requests, including those for tokens."""

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this method first for each session that it creates.
        super()._config_headers(session)
        limited: Any = partial(session.request, timeout=(CONNECT_SECONDS, self._answer_seconds()))
        session.request = limited  # type: ignore[method-assign]

    def _answer_seconds(self) -> float:
        return float(self.properties.get(TIMEOUT) or ANSWER_SECONDS)
