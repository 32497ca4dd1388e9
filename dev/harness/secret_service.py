"""A stand-in on 127.0.0.1 for AWS Secrets Manager and Google Secret Manager. Each secret has readers."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lake/shop-a1B2c3"
VERSION = "projects/lake-project/secrets/shop/versions/latest"
TOKEN = "ya29.of-the-machine"


@dataclass
class SecretService:
    """The secrets, by name; those of AWS are binary if they are bytes. Only ``reader`` may read them: an access key of
    AWS, or the token of Google.

    ``failures`` is the number of requests still to come that fail: AWS refuses each second one because there are too
    many. If the service is ``behind_proxy``, the proxy answers in its place. ``read`` counts the answers.
    """

    secrets: dict[str, str | bytes]
    reader: str
    url: str = ""
    failures: int = 0
    behind_proxy: bool = False
    read: list[str] = field(default_factory=list)


@contextmanager
def secret_service(secrets: dict[str, str | bytes], reader: str) -> Iterator[SecretService]:
    """Start a stand-in with these secrets."""
    service = SecretService(secrets, reader)

    class Handler(_Handler):
        of = service

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service.url = f"http://127.0.0.1:{server.server_port}"
        yield service
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    of: SecretService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/token":
            self._send(200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
            return
        name = json.loads(body)["SecretId"]
        signed = re.match(r"AWS4-HMAC-SHA256 Credential=(\w+)/\d+/us-east-1/secretsmanager/", self._authorization)
        if self.headers["X-Amz-Target"] != "secretsmanager.GetSecretValue":
            self._send(400, {"__type": "UnknownOperationException"})
        elif self._fails():
            throttled = self.of.failures % 2
            code = "RequestLimitExceeded" if throttled else "InternalServiceError"
            self._send(400 if throttled else 500, {"__type": code, "Message": "try again"})
        elif signed is None or signed[1] != self.of.reader:
            self._send(400, {"__type": "AccessDeniedException", "Message": f"not authorized to perform: read {name}"})
        elif name not in self.of.secrets:
            self._send(400, {"__type": "ResourceNotFoundException", "Message": "can't find the specified secret."})
        else:
            secret = self._secret(name)
            found = {"SecretString": secret} if isinstance(secret, str) else {"SecretBinary": _base64(secret)}
            self._send(200, {"ARN": name, "Name": "lake/shop", **found})

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v1/").removesuffix(":access")
        if self._fails():
            self._send(503, {"error": {"message": "try again"}})
        elif self._authorization != f"Bearer {self.of.reader}":
            self._send(403, {"error": {"message": "Permission 'secretmanager.versions.access' denied"}})
        elif name not in self.of.secrets:
            self._send(404, {"error": {"message": f"Secret [{name}] not found"}})
        else:
            secret = self._secret(name)
            data = _base64(secret.encode() if isinstance(secret, str) else secret)
            self._send(200, {"name": name, "payload": {"data": data}})

    @property
    def _authorization(self) -> str:
        return str(self.headers.get("Authorization", ""))

    def _secret(self, name: str) -> str | bytes:
        self.of.read.append(name)
        return self.of.secrets[name]

    def _fails(self) -> bool:
        self.of.failures -= 1
        return self.of.failures >= 0

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        if self.of.behind_proxy and "access_token" not in body:
            status, data = 200, b"<html>log in</html>"
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
