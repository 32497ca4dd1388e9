"""The URI of a folder in the lake: taken apart once, joined by its parts, and never a carrier of secrets.

A query, a fragment or user info would come to lie behind whatever is appended to a URI's text: ``s3://bucket/lake?x=y``
and ``/_runs`` make a URI whose path is still ``lake``. And that is where people put passwords. So a URI has none of
them: credentials come from the environment, where pyarrow.fs finds them, and so do endpoints and regions.
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
    "leave it out: credentials, region and endpoint come from the environment of Airflow and Spark "
    "(for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL)"
)
_FORM = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*)://([^/]*))?(/.*)?", re.DOTALL)
_UNENCODED = "!$&'()*+,;=:@"
# What pyarrow.fs takes in the path of a URI.
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
# What some library takes for a pattern in the path of a file, or decodes.
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
        # Of a URI without an authority, the slash of an empty path is all that is left.
        return f"{self.scheme}://{self.authority}{path}" if self.authority or path else f"{self.scheme}:///"

    @property
    def decoded(self) -> tuple[str, ...]:
        """The segments as the store knows them."""
        return tuple(map(unquote, self.segments)) if self.scheme else self.segments

    @property
    def plain(self) -> str:
        """With the path as the store knows it, which many libraries take for the URI of a file.

        :raises ConfigurationError: some of them would take it for other files, of another lake perhaps.
        """
        path = "/".join(("", *self.decoded))
        if match := _PATTERN.search(path):
            raise ConfigurationError(
                f"DuckDB, Polars or Spark would take the {match[0]} in this path for a pattern, and read other files",
                where=str(self),
                hint="read it with open_dataset; or have the lake in a folder without *, ?, [, ], {, }, a backslash, "
                "or a % before two hexadecimal digits",
            )
        return f"{self.scheme or 'file'}://{self.authority}{path}"

    def joined(self, *names: str) -> LakeUri:
        """What the store calls ``names`` below this folder."""
        parts = (part for name in names for part in name.split("/"))
        encoded = (quote(part, safe=_UNENCODED) for part in parts) if self.scheme else parts
        return replace(self, segments=(*self.segments, *encoded))

    def parent(self) -> LakeUri:
        return replace(self, segments=self.segments[:-1])

    @classmethod
    def parse(cls, text: str) -> LakeUri:
        """Read the URI of a folder. Trailing slashes mean nothing.

        :raises ConfigurationError: it is none, or holds what belongs elsewhere. The message shows no secret.
        """
        form = _FORM.fullmatch(text)
        if form is None or not text:
            raise _refused(text, "it is neither a URI nor an absolute path")
        if text != text.rstrip():
            # A variable or a block of YAML easily ends in a line break, which nobody sees in the name of a folder.
            raise _refused(text, "it ends in white space", "leave out what follows the last visible character")
        scheme, authority, path = form[1] or "", form[2] or "", form[3] or ""
        if scheme not in _SCHEMES:
            raise _refused(text, f"the scheme {scheme} is none of {', '.join(filter(None, _SCHEMES))}")
        if scheme:
            if "?" in text:
                raise _refused(text, "it has a query", _ELSEWHERE)
            if "#" in text:
                raise _refused(text, "it has a fragment", "leave out the # and what follows it, or write it as %23")
            _check_authority(text, scheme, authority)
            if not _PATH.fullmatch(path.replace("/", "")):
                raise _refused(
                    text,
                    "its path has characters that a URI cannot hold",
                    "percent-encode them: a space is %20, é is %C3%A9",
                )
        # The operating system takes several slashes as one; in an object store they would be another name.
        segments = tuple(path[1:].rstrip("/").split("/")) if path.rstrip("/") else ()
        if scheme in _LOCAL:
            segments = tuple(filter(None, segments))
        lake_uri = cls(scheme, authority, segments)
        for segment in lake_uri.decoded:
            if segment in ("", ".", "..") or "/" in segment or "\0" in segment:
                raise _refused(text, "its path has a part that is empty, '.', '..', or holds an encoded slash or NUL")
        return lake_uri

    def matches(self, pattern: str) -> bool:
        """Whether this is the folder that ``pattern`` names, or one below it.

        A pattern is a URI in which ``*`` stands for any run of characters within a part; ``*`` alone matches all.
        They are compared part by part: ``s3://lake/raw`` is not above ``s3://lake/raw2``.
        """
        if pattern == "*":
            return True
        wanted = LakeUri.parse(pattern)
        # A path and its file URI are one place.
        schemes = ["file" if scheme in _LOCAL else scheme for scheme in (self.scheme, wanted.scheme)]
        return (
            schemes[0] == schemes[1]
            and glob(wanted.authority, self.authority)
            and len(wanted.segments) <= len(self.segments)
            and all(map(glob, wanted.decoded, self.decoded))
        )


def glob(pattern: str, text: str) -> bool:
    """Whether ``text`` is ``pattern``, in which ``*`` stands for any run of characters. Takes linear time."""
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
    """``text``, which may be a bad URI, without what could be a secret in it: user info, a query, a fragment.

    It is refused as ``text`` would be. What is fine stays as it is.
    """
    head, mark = text, ""
    # An absolute path may hold all of these characters.
    if text.startswith("/"):
        return text
    if match := re.search(r"[?#]", text):
        head, mark = text[: match.start()], f"{match[0]}***"
    scheme, colon, rest = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)?(:/*)?(.*)", head, re.DOTALL).groups("")  # type: ignore[union-attr]
    if not colon:
        scheme, rest = "", head
    authority = rest.partition("/")[0]
    if _may_hold_a_secret(scheme, authority) or (colon != "://" and "@" in rest):
        # A password may hold a slash.
        rest = f"***:***@{rest.rpartition('@')[2]}" if "@" in rest else "***:***"
    return f"{scheme}{colon}{rest}{mark}"


def _may_hold_a_secret(scheme: str, authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    # Azure's user is the container; Google's "anonymous" says that there are no credentials.
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
        raise _refused(text, "a file URI names no host", "write it with three slashes: file:///data/lake")
    if scheme in _BUCKETS and (not host or ":" in host):
        raise _refused(text, "it names no bucket, or a port beside it", _ELSEWHERE if host else _HINT)


def _refused(text: str, why: str, hint: str = _HINT) -> ConfigurationError:
    return ConfigurationError(f"{redacted(text)!r} is no place to write to: {why}", hint=hint)
