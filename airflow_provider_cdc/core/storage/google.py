"""Google Cloud Storage: tokens, and conditional writes by the JSON API.

The XML API, which obstore uses, is not complete in emulators. In the JSON API, an upload of the type ``media`` ignores
the condition in emulators, so uploads are of the type ``multipart``.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

from airflow_provider_cdc.core.storage.access import StorageSettings
from airflow_provider_cdc.errors import ConfigurationError

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
TIMEOUT_SECONDS = (10.0, 60.0)


def token_of(settings: StorageSettings) -> tuple[str, datetime]:
    """Return a token for the service account whose key is in the settings, and the time at which the token expires.

    :raises ConfigurationError: the key is invalid, or a package is missing.
    """
    credentials = credentials_of(settings)
    _refresh(credentials)
    return credentials.token, credentials.expiry.replace(tzinfo=UTC)


def credentials_of(settings: StorageSettings | None) -> Any:
    """Return Google's credentials: of the key in the settings, or those in the environment.

    :raises ConfigurationError: the key is invalid, there are no credentials, or a package is missing.
    """
    try:
        import google.auth
        from google.oauth2 import service_account
    except ImportError as error:
        raise ConfigurationError(
            f"a package for Google Cloud Storage is not installed: {error}",
            where="parameter storage_conn_id",
            hint="pip install \"airflow-provider-cdc[gcs]\", where Airflow's tasks and Spark's executors run",
        ) from None
    try:
        if settings is not None and settings.get("key"):
            kind: Any = service_account.Credentials
            return kind.from_service_account_info(json.loads(settings.get("key")), scopes=[SCOPE])
        return google.auth.default(scopes=[SCOPE])[0]
    except Exception as error:
        # The message may show a part of the key.
        raise ConfigurationError(
            f"Google's credentials cannot be used ({type(error).__name__})",
            where="parameter storage_conn_id",
            hint="give the connection the key of a service account (Keyfile JSON), or correct the environment",
        ) from None


def _refresh(credentials: Any) -> None:
    import requests
    from google.auth.transport.requests import Request

    with requests.Session() as session:
        credentials.refresh(Request(session))


class GoogleRecords:
    """The objects of one bucket, written only under a condition."""

    def __init__(self, bucket: str, settings: StorageSettings | None, endpoint: str) -> None:
        self._bucket = quote(bucket, safe="")
        self._settings = settings
        self._endpoint = endpoint or ENDPOINT
        self._anonymous = bool(settings and settings.get("anonymous")) or endpoint.startswith("http://")

    @cached_property
    def _session(self) -> Any:
        if self._anonymous:
            import requests

            return requests.Session()
        credentials = credentials_of(self._settings)
        from google.auth.transport import requests as google_requests

        transport: Any = google_requests
        return transport.AuthorizedSession(credentials)

    def read(self, key: str) -> tuple[bytes, str] | None:
        place = f"{self._endpoint}/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}"
        for _ in range(5):
            answer = self._ask("GET", place)
            if answer.status_code == 404:
                return None
            generation = str(_checked(answer).json()["generation"])
            # The generation makes sure that the content and the condition of a later write belong together.
            data = self._ask("GET", f"{place}?alt=media&generation={generation}")
            if data.status_code != 404:
                return bytes(_checked(data).content), generation
        raise OSError("the object kept changing while it was read")

    def write(self, key: str, data: bytes, version: Any) -> bool:
        boundary = uuid.uuid4().hex
        head = json.dumps({"name": key, "contentType": "application/json"})
        body = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{head}\r\n"
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n"
        ).encode()
        answer = self._ask(
            "POST",
            f"{self._endpoint}/upload/storage/v1/b/{self._bucket}/o?uploadType=multipart"
            f"&ifGenerationMatch={version or 0}",
            data=body + data + f"\r\n--{boundary}--".encode(),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        )
        if answer.status_code in (412, 409):
            return False
        _checked(answer)
        return True

    def delete(self, key: str) -> None:
        answer = self._ask("DELETE", f"{self._endpoint}/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}")
        if answer.status_code != 404:
            _checked(answer)

    def _ask(self, method: str, url: str, **more: Any) -> Any:
        try:
            return self._session.request(method, url, timeout=TIMEOUT_SECONDS, **more)
        except ConfigurationError:
            raise
        except Exception as error:
            # Google's transport raises errors of several classes.
            raise OSError(f"{type(error).__name__}: {error}") from None


def _checked(answer: Any) -> Any:
    if answer.status_code >= 400:
        raise OSError(f"HTTP status {answer.status_code}: {answer.text[:300]}")
    return answer
