"""The URI of a folder in the lake. A URI is parsed once, other paths are appended to its parsed segments, and it never
contains secrets.

A URI with a query, a fragment or user info is rejected. Appending a folder to ``s3://bucket/lake?x=y`` would not change
its path, and users put passwords into these parts. Credentials, endpoints and regions come from a connection, or from
the environment, where pyarrow.fs finds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from airflow_provider_cdc.errors import ConfigurationError

_HINT = "give a URI such as file:///data/lake, s3://bucket/lake or hdfs://name/lake"
_LOCAL = ("", "file")
_BUCKETS = ("s3", "gs", "gcs")
_SCHEMES = (*_LOCAL, *_BUCKETS, "abfs", "abfss", "hdfs", "viewfs")
_ELSEWHERE = (
    "leave it out: credentials, region and endpoint come from the connection that storage_conn_id names, or from the "
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
