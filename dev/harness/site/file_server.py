"""Serves a folder over HTTP on this machine, because Airflow's UI can link to reports only by web addresses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path, port: int) -> Iterator[str]:
    """Serve ``folder`` on 127.0.0.1 while the context is open, and yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, name="file server", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
