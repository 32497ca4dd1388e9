"""Classifies errors of the lake's store by whether a retry may help, and adds hints for the user."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_cdc.errors import CdcError, StorageRefused, StorageUnavailable

_ACCESS = (
    "grant the user that Airflow and Spark run as the right to list, read, write and delete there, "
    "and make sure that both have valid credentials (storage_conn_id, or their environment)"
)
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_TERMINAL = {
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOTDIR: "a part of the path is a file: choose another target",
    errno.EISDIR: "there is a folder where a file should be: move the folder away",
    errno.ENOTSUP: "this store does not support the operation: choose another target",
}
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\")]*")
_OURS = (FileNotFoundError, FileExistsError)
"""Errors that the callers expect and handle."""

# Object stores report errors only as text, with the SDKs' own error names, which no language setting translates.
_REFUSALS = (
    (
        re.compile(
            r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|"
            r"INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|ExpiredToken|INVALID_SIGNATURE|"
            r"MISSING_AUTHENTICATION_TOKEN|UNAUTHENTICATED|AuthenticationFailed|[Ss]tatus(?: code)?:? 401"
        ),
        "its credentials are wrong or have expired",
        "set valid credentials in storage_conn_id, or in the environment of Airflow and Spark (AWS_ACCESS_KEY_ID, …)",
    ),
    (
        re.compile(
            r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '[^']*' not found|[Cc]ontainer ?[Nn]ot ?[Ff]ound|"
            r"The specified bucket does not exist"
        ),
        "there is no such bucket",
        "create it, or correct the target; a bucket in another region than AWS_DEFAULT_REGION is not found either",
    ),
    (
        re.compile(
            r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|AuthorizationFailure|AuthorizationPermissionMismatch|"
            r"[Ss]tatus(?: code)?:? 403|Permission denied"
        ),
        "it denies access",
        _ACCESS,
    ),
)


def storage_error(error: OSError, where: str) -> CdcError:
    """Convert ``error`` of the store that holds ``where`` to an error of this package. Unknown errors are retried."""
    # The query of a URL may be a signature.
    text = _QUERY.sub(r"\1?***", " ".join(str(error).split()))[:600]
    number = error.errno
    if number in _DENIED:
        return StorageRefused(f"the store denies access: {text}", where=where, hint=_ACCESS)
    if number in _TERMINAL:
        return StorageRefused(f"the store rejects this: {text}", where=where, hint=_TERMINAL[number])
    if number in _FULL:
        return StorageUnavailable(
            f"the store is full: {text}", where=where, hint="free space there, or increase the quota"
        )
    for known_error, what, hint in _REFUSALS:
        if number is None and known_error.search(text):
            return StorageRefused(f"the store rejects the request ({what}): {text}", where=where, hint=hint)
    return StorageUnavailable(
        f"the store failed: {text}",
        where=where,
        hint="make sure that the store can be reached from where Airflow and Spark run (name, network, endpoint)",
    )


@contextmanager
def told(where: str) -> Iterator[None]:
    """Convert errors of the store that holds ``where``. Errors about a missing or existing file are not converted.

    :raises StorageRefused: a retry cannot help.
    :raises StorageUnavailable: a retry may help.
    """
    try:
        yield
    except CdcError:
        raise
    except _OURS:
        raise
    except OSError as error:
        # A traceback of the cause would show the text with the query.
        cause = None if _QUERY.search(str(error)) else error
        raise storage_error(error, where) from cause
