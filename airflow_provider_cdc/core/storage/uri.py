"""The URI of a folder in the lake. A URI is parsed once, other paths are appended to its parsed segments, and it never
contains secrets.

A URI with a query, a fragment or user info is rejected. Appending a folder to ``s3://bucket/lake?x=y`` would not change
its path, and users put passwords into these parts. Credentials, endpoints and regions come from a connection, or from
the environment, where pyarrow.fs finds them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_cdc.errors import ConfigurationError


def safe_name(name: str) -> str:
    """Encode ``name`` in ASCII letters, digits, ``_ - $``; other bytes become ``~`` and two hexadecimal digits."""
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_-$") else f"~{byte:02X}"
        for byte in name.encode()
    )


_HINT = "give a URI such as file:///data/lake, s3://bucket/lake or hdfs://name/lake"
_LOCAL = ("", "file")
_BUCKETS = ("s3", "gs", "gcs")
_SCHEMES = (*_LOCAL, *_BUCKETS, "abfs", "abfss", "hdfs", "viewfs")
_ELSEWHERE = (
    "leave it out: credentials, region and endpoint come from the connection that Lake.storage_conn_id names, or from "
    "the "
    "environment of Airflow and Spark (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION, "
    "AWS_ENDPOINT_URL)"
)
_FORM = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://([^/]*))?(/.*)?", re.DOTALL)
_UNENCODED = "!$&'()*+,;=:@"
# The characters that pyarrow.fs accepts in the path of a URI.
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
# Control characters, quotes and undecodable bytes. Many programs do not pass them on unchanged.
_UNUSABLE = re.compile(r'["\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
# Characters in the path of a file that some library decodes, or treats as a pattern.
_PATTERN = re.compile(r"[*?\[\]{}\\]|%[0-9A-Fa-f]{2}")


@dataclass(frozen=True)
class LakeUri:
    """``scheme://authority/segments``, or an absolute path, whose ``scheme`` and ``authority`` are empty."""

    scheme: str
    authority: str
    segments: tuple[str, ...]

    def __str__(self) -> str:
        path = "/".join(("", *self.segments))
        if not self.scheme:
            return path or "/"
        # A URI without an authority and with an empty path is only a slash after the scheme.
        return f"{self.scheme}://{self.authority}{path}" if self.authority or path else f"{self.scheme}:///"

    @property
    def decoded(self) -> tuple[str, ...]:
        """The segments, percent-decoded: the names in the store."""
        return tuple(map(unquote, self.segments)) if self.scheme else self.segments

    @property
    def plain(self) -> str:
        """The URI with a percent-decoded path, as many libraries expect it.

        :raises ConfigurationError: some libraries would read other files, perhaps of another lake.
        """
        path = "/".join(("", *self.decoded))
        if match := _PATTERN.search(path):
            raise ConfigurationError(
                f"DuckDB, Polars or Spark would treat the {match[0]} in this path as a pattern, and read other files",
                where=str(self),
                hint="read the files with open_dataset. Or move the lake to a folder whose path has no *, ?, [, ], {, "
                "}, backslash, or % before two hexadecimal digits",
            )
        return f"{self.scheme or 'file'}://{self.authority}{path}"

    def joined(self, *names: str) -> LakeUri:
        """Return the URI of ``names`` below this folder; ``names`` are not percent-encoded."""
        parts = (part for name in names for part in name.split("/"))
        encoded = (quote(part, safe=_UNENCODED) for part in parts) if self.scheme else parts
        return replace(self, segments=(*self.segments, *encoded))

    def parent(self) -> LakeUri:
        return replace(self, segments=self.segments[:-1])

    @classmethod
    def parse(cls, text: str) -> LakeUri:
        """Parse the URI of a folder. Trailing slashes are ignored.

        :raises ConfigurationError: the text is not a URI of a folder, or has a part that is not allowed. The message
            shows no secret.
        """
        form = _FORM.fullmatch(text)
        if form is None or not text:
            raise _refused(text, "it is neither a URI nor an absolute path")
        if text != text.rstrip():
            # The value of a variable or of a YAML block often ends in a line break. Users would not see the line break
            # in the folder's name.
            raise _refused(text, "it ends in white space", "remove the white space at the end")
        scheme, authority, path = form[1] or "", form[2] or "", form[3] or ""
        if scheme not in _SCHEMES:
            raise _refused(text, f"the scheme {scheme} is not one of {', '.join(filter(None, _SCHEMES))}")
        if scheme:
            if "?" in text:
                raise _refused(text, "it has a query", _ELSEWHERE)
            if "#" in text:
                raise _refused(text, "it has a fragment", "remove the # and what follows it, or write the # as %23")
            _check_authority(text, scheme, authority)
            if not _PATH.fullmatch(path.replace("/", "")):
                raise _refused(
                    text,
                    "its path has characters that a URI cannot hold",
                    "percent-encode them: a space is %20, é is %C3%A9",
                )
        # The operating system treats several slashes as one slash. An object store would treat the path as another
        # name.
        segments = tuple(path[1:].rstrip("/").split("/")) if path.rstrip("/") else ()
        if scheme in _LOCAL:
            segments = tuple(filter(None, segments))
        lake_uri = cls(scheme, authority, segments)
        for segment in lake_uri.decoded:
            if segment in ("", ".", "..") or "/" in segment or "\0" in segment:
                raise _refused(text, "its path has a part that is empty, '.', '..', or holds an encoded slash or NUL")
            if match := _UNUSABLE.search(segment):
                raise _refused(
                    text,
                    f"its path has the character {match[0]!r}",
                    "use a folder whose name has no control characters, no double quotes and only valid UTF-8",
                )
        return lake_uri

    def matches(self, pattern: str) -> bool:
        """Return whether this is the folder that ``pattern`` names, or a folder below it.

        A pattern is a URI in which ``*`` matches any number of characters within one part: the authority, or one
        segment of the path. The pattern ``*`` matches every URI. The parts are compared one by one: ``s3://lake/raw``
        does not match ``s3://lake/raw2``.
        """
        if pattern == "*":
            return True
        wanted = LakeUri.parse(pattern)
        # A path and its file URI are the same folder.
        schemes = ["file" if scheme in _LOCAL else scheme for scheme in (self.scheme, wanted.scheme)]
        return (
            schemes[0] == schemes[1]
            and glob(wanted.authority, self.authority)
            and len(wanted.segments) <= len(self.segments)
            and all(map(glob, wanted.decoded, self.decoded))
        )


def glob(pattern: str, text: str) -> bool:
    """Return whether ``text`` matches ``pattern``, where ``*`` matches any run of characters. Takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        index = text.find(piece, at, end)
        if index < 0:
            return False
        at = index + len(piece)
    return True


def redacted(text: str) -> str:
    """Mask the parts of ``text`` that could be a secret: user info, query, fragment. ``text`` may be an invalid URI.

    If `LakeUri.parse` would reject ``text``, it also rejects the result. A valid URI is returned unchanged.
    """
    head, mark = text, ""
    # An absolute path may contain all of these characters.
    if text.startswith("/"):
        return text
    if match := re.search(r"[?#]", text):
        head, mark = text[: match.start()], f"{match[0]}***"
    scheme, colon, rest = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)?(:/*)?(.*)", head, re.DOTALL).groups("")  # type: ignore[union-attr]
    if not colon:
        scheme, rest = "", head
    authority = rest.partition("/")[0]
    if _may_hold_a_secret(scheme, authority) or (colon != "://" and "@" in rest):
        # A password may contain a slash.
        rest = f"***:***@{rest.rpartition('@')[2]}" if "@" in rest else "***:***"
    return f"{scheme}{colon}{rest}{mark}"


def _may_hold_a_secret(scheme: str, authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    # In an Azure URI, the text before the @ is the container. In a Google URI, "anonymous" before the @ means that no
    # credentials are used.
    if at and (not user or not ((scheme in ("abfs", "abfss") and ":" not in user) or user == "anonymous")):
        return True
    if "%40" in authority:
        return True
    port = host.partition(":")[2]
    return bool(port) and not host.startswith("[") and not port.isdecimal()


def _check_authority(text: str, scheme: str, authority: str) -> None:
    user, at, host = authority.rpartition("@")
    if _may_hold_a_secret(scheme, authority) or (at and user == "anonymous" and scheme not in ("gs", "gcs")):
        raise _refused(text, "it has a user or a password", _ELSEWHERE)
    if scheme == "file" and authority:
        raise _refused(text, "a file URI cannot have a host", "write it with three slashes: file:///data/lake")
    if scheme in _BUCKETS and (not host or ":" in host):
        raise _refused(text, "it has no bucket, or a port after the bucket", _ELSEWHERE if host else _HINT)


def _refused(text: str, why: str, hint: str = _HINT) -> ConfigurationError:
    return ConfigurationError(f"{redacted(text)!r} cannot be used as a folder: {why}", hint=hint)


# The target of a run. A DAG sets the target to the URI of a folder in the lake. The URI may contain a placeholder for
# the source.


SOURCE_PLACEHOLDER = "{source}"


def lake_of(target: str, source_conn_id: str, parameter: str = "target") -> str:
    """Return the URI of the folder to publish in: ``target``, with ``{source}`` replaced by the id of the connection.

    The id is encoded like parts of table names, so it is one part of the path: bytes other than ASCII letters, digits,
    ``_ - $`` become ``~`` and two hexadecimal digits.

    :raises ConfigurationError: ``target`` is not a valid folder.
    """
    uri = target.replace(SOURCE_PLACEHOLDER, safe_name(source_conn_id))
    if match := re.search(r"\{[^/]*\}", redacted(uri)):
        raise ConfigurationError(
            f"the {parameter} has an unknown placeholder {match[0]}",
            where=f"parameter {parameter}",
            hint=f"use only {SOURCE_PLACEHOLDER}, which stands for the id of the connection to the source",
        )
    return str(LakeUri.parse(uri))


# The settings for access to an object store: credentials, endpoint and region, as an Airflow connection names them.
#
# A process has at most one set of settings at a time. The settings apply to all folders in stores of one kind. For
# folders in other stores, and for all folders of a process without settings, the store's own library finds the settings
# in the environment: in variables, in files, and in the role of the machine.
#
# The settings may contain secrets. `Storage` is pickled without the settings, and Spark tasks get the settings
# separately from their work (`jobs.runtime.tasks`).


S3, GCS, AZURE = "s3", "gcs", "azure"
_STORES = {"s3": S3, "gs": GCS, "gcs": GCS, "abfs": AZURE, "abfss": AZURE}


@dataclass(frozen=True)
class StorageSettings:
    """The settings for one kind of object store (``s3``, ``gcs`` or ``azure``). If a setting is missing, the
    environment is searched for it.

    ``options`` of S3: ``access_key``, ``secret_key``, ``session_token``, ``region``, ``endpoint``, ``addressing``
    (``path`` or ``virtual``), ``role_arn``, ``external_id``. Of GCS: ``key`` (the key of a service account, as JSON),
    ``endpoint``, ``anonymous``. Of Azure: ``account``, ``key``, ``sas_token``, ``tenant_id``, ``client_id``,
    ``client_secret``, ``endpoint``.
    """

    store: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def get(self, name: str) -> str:
        """Return the value of an option, or an empty text if the option is not set."""
        return self.options.get(name, "")


_current: StorageSettings | None = None


def current() -> StorageSettings | None:
    """Return the settings of this process. Return None if everything comes from the environment."""
    return _current


def install(settings: StorageSettings | None) -> None:
    """Set the settings of this process."""
    global _current
    _current = settings


@contextmanager
def using(settings: StorageSettings | None) -> Iterator[None]:
    """Set the settings of this process for the duration of the block. A `Storage` that the block creates keeps the
    settings after the block."""
    before = current()
    install(settings)
    try:
        yield
    finally:
        install(before)


def store_of(uri: LakeUri) -> str:
    """Return the kind of object store that a URI names. The result is empty for a disk and for HDFS."""
    return _STORES.get(uri.scheme, "")


def fitting(settings: StorageSettings | None, uri: LakeUri) -> StorageSettings | None:
    """Return the settings if they are for the kind of store that ``uri`` names; otherwise None."""
    return settings if settings is not None and settings.store == store_of(uri) else None


def check_fits(settings: StorageSettings | None, uris: Mapping[str, str]) -> None:
    """Check that at least one of a run's folders is in a store of the kind that the settings are for.

    :param uris: the folders, by the name of the parameter.
    :raises ConfigurationError: none of the folders would use the settings.
    """
    if settings is None or any(fitting(settings, LakeUri.parse(uri)) for uri in uris.values()):
        return
    raise ConfigurationError(
        f"the connection is for {settings.store}, and neither {' nor '.join(uris)} is in such a store",
        where="parameter storage_conn_id (Lake.storage_conn_id)",
        hint="name a connection of type aws for s3://, google_cloud_platform for gs://, wasb or adls for abfs://",
    )


# Google Cloud Storage: tokens, and conditional writes by the JSON API.
#
# The XML API, which obstore uses, is not complete in emulators. In the JSON API, an upload of the type ``media``
# ignores the condition in emulators, so uploads are of the type ``multipart``.


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
            where="parameter storage_conn_id (Lake.storage_conn_id)",
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
            where="parameter storage_conn_id (Lake.storage_conn_id)",
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
