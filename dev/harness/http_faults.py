"""An HTTP proxy on loopback in front of an object store or a catalog: it counts requests, and injects faults into them.

It forwards the headers as they are, so signatures that contain the host stay valid if clients talk to the proxy.
"""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

REFUSED, LOST, HANGS, LATE = "refused", "lost", "hangs", "late"
"""Faults. The server does not get the request, and the client gets a 503; or the server answers, and the connection
ends without its answer; or nothing ever happens; or the connection ends at once, and the server gets the request
`LATE_SECONDS` later."""
LATE_SECONDS = 0.3
_HOP = {"connection", "transfer-encoding", "expect", "keep-alive"}
_BUSY = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>busy</Message></Error>"


@dataclass
class Request:
    """A request. ``number`` counts the requests of the proxy from 0."""

    number: int
    method: str
    path: str


Fault = Callable[[Request], str]
"""Returns the fault to inject into a request; empty: none."""


@dataclass
class Faults:
    """A running proxy. ``fault`` may be changed at any time. ``pause`` is the latency of each request, in seconds."""

    endpoint: str = ""
    fault: Fault = lambda request: ""
    pause: float = 0.0
    requests: list[Request] = field(default_factory=list)
    injected: list[Request] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, fault: str, begin: int, end: int) -> None:
        """Inject a fault into the requests from number ``begin`` to before ``end``."""
        self.fault = lambda request: fault if begin <= request.number < end else ""

    def clear(self) -> None:
        """Inject no more faults, and count from 0 again."""
        self.fault = lambda request: ""
        self.requests.clear()
        self.injected.clear()


@contextmanager
def http_faults(target: str) -> Iterator[Faults]:
    """Start a proxy in front of ``target`` (http://host:port)."""
    authority = target.partition("://")[2]
    faults = Faults()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise, the client's system delays each answer by 40 ms.
        disable_nagle_algorithm = True
        wbufsize = -1

        def serve(self) -> None:
            body = self._body()
            with faults.lock:
                request = Request(len(faults.requests), self.command, self.path)
                faults.requests.append(request)
                fault = faults.fault(request)
                if fault:
                    faults.injected.append(request)
            time.sleep(faults.pause)
            if fault == HANGS:
                faults.ended.wait()
                self.close_connection = True
            elif fault == REFUSED:
                self._answer(503, [("Content-Type", "application/xml")], _BUSY)
            elif fault == LATE:
                threading.Timer(LATE_SECONDS, self._forward, (body,)).start()
                self.close_connection = True
            else:
                status, headers, data = self._forward(body)
                if fault == LOST:
                    self.close_connection = True
                else:
                    self._answer(status, headers, data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = serve  # noqa: N815

        def _body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                data = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(authority, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP and name.lower() != "content-length":
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            with suppress(OSError):
                self.send_response_only(status)
                length = str(len(data))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in _HOP | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: object) -> None:
            """Ignore clients that end their connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        faults.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield faults
        finally:
            faults.ended.set()
            server.shutdown()
            thread.join()
