"""The password of a source in AWS Secrets Manager or Google Secret Manager.

The connection only names the secret. Each process that opens a session reads it with the identity of its own machine:
Airflow's tasks, Spark's driver and its executors. So no secret reaches Airflow's connections, or travels from one
machine to another.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.compat import hide_answers_of_aws
from airflow_provider_cdc.errors import CdcError, ConfigurationError, SourceUnavailable

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.source import ConnectionSettings

AWS = re.compile(r"arn:aws[\w-]*:secretsmanager:([a-z0-9-]+):\d{12}:secret:[\w/+=.@-]+", re.ASCII)
"""The ARN of a secret of AWS. It has the region."""
GOOGLE = re.compile(r"projects/\w[\w:.-]*/secrets/[\w-]+/versions/[\w-]+", re.ASCII)
"""The name of a version of a secret of Google."""
GOOGLE_URL = "https://secretmanager.googleapis.com/v1"
KEPT_SECONDS = 300.0
"""How long a process uses a secret before it reads it again, in seconds."""
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
"""How long one attempt to reach a store, and its answer, may take, in seconds."""
_THROTTLED = re.compile("Throttl|TooManyRequests|RequestLimitExceeded|SlowDown")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_kept: dict[str, tuple[float, str]] = {}


def is_reference(text: str) -> bool:
    """Return whether ``text`` names a secret of one of the two stores."""
    return bool(AWS.fullmatch(text) or GOOGLE.fullmatch(text))


def read_secret(settings: ConnectionSettings) -> str:
    """Return the password that ``settings.secret_ref`` names. It is the secret itself without line breaks at its end,
    or its field ``password``.

    :raises ConfigurationError: this process may not read the secret, there is none, or it has no password.
    :raises SourceUnavailable: the store does not answer.
    """
    name = settings.secret_ref
    until, password = _kept.get(name, (0.0, ""))
    if time.monotonic() < until:
        return password
    read: Callable[[ConnectionSettings], bytes] = _read_aws if AWS.fullmatch(name) else _read_google
    try:
        password = _password_in(read(settings), settings)
    except ImportError as error:
        extra = "aws" if read is _read_aws else "gcs"
        raise ConfigurationError(
            f"reading the password needs a package that is not installed: {error}",
            where=_where(settings),
            hint=f"pip install 'airflow-provider-cdc[{extra}]' in the Python environment of Airflow and in that of "
            "Spark",
        ) from None
    _kept[name] = time.monotonic() + KEPT_SECONDS, password
    return password


def forget(settings: ConnectionSettings) -> None:
    """Read the secret anew for the next session: the server has refused the password."""
    _kept.pop(settings.secret_ref, None)


def _password_in(secret: bytes, settings: ConnectionSettings) -> str:
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        raise _unusable(settings, "is not a text in UTF-8") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    # A password of digits is JSON, too. Command-line tools store the line break of their input.
    password = found.get("password") if isinstance(found, dict) else text.rstrip("\r\n")
    if not isinstance(password, str):
        # Do not show the fields, which may be secrets.
        raise _unusable(settings, "is a JSON object without a text `password`")
    if not password:
        raise _unusable(settings, "has an empty password")
    return password


def _read_aws(settings: ConnectionSettings) -> bytes:
    from botocore import exceptions

    try:
        answer = _aws_client(settings.secret_ref.split(":")[3]).get_secret_value(SecretId=settings.secret_ref)
    except exceptions.ClientError as error:
        found: Mapping[str, Any] = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if status >= 500 or status == 429 or _THROTTLED.search(str(found.get("Code"))):
            raise _unreachable(settings, found.get("Code")) from None
        raise _refused(settings, f"{found.get('Code')}: {found.get('Message')}") from None
    except (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.MetadataRetrievalError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise _unreachable(settings, error) from None
    except exceptions.BotoCoreError as error:
        raise _refused(settings, error) from None
    if (text := answer.get("SecretString")) is not None:
        return str(text).encode()
    if (data := answer.get("SecretBinary")) is not None:
        return bytes(data)
    raise _unreachable(settings, "the answer is not one of AWS Secrets Manager")


@lru_cache(maxsize=16)
def _aws_client(region: str) -> Any:
    from botocore.config import Config
    from botocore.session import Session

    hide_answers_of_aws()
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=ANSWER_SECONDS)
    return Session().create_client("secretsmanager", region_name=region, config=config)


def _read_google(settings: ConnectionSettings) -> bytes:
    import google.auth
    from google.auth import exceptions
    from google.auth.transport.requests import AuthorizedSession
    from requests import RequestException

    try:
        kind: Any = AuthorizedSession
        answer = kind(google.auth.default(scopes=[_SCOPE])[0]).get(
            f"{GOOGLE_URL}/{settings.secret_ref}:access", timeout=(CONNECT_SECONDS, ANSWER_SECONDS)
        )
    except exceptions.DefaultCredentialsError:
        raise _refused(settings, "this process has no credentials for Google") from None
    except exceptions.RefreshError as error:
        raise (_unreachable if error.retryable else _refused)(settings, error) from None
    except (exceptions.GoogleAuthError, RequestException) as error:
        raise _unreachable(settings, error) from None
    if answer.status_code == 429 or answer.status_code >= 500:
        raise _unreachable(settings, f"HTTP status {answer.status_code}")
    if answer.status_code != 200:
        raise _refused(settings, f"HTTP status {answer.status_code}: {_message(answer)}")
    try:
        return base64.b64decode(answer.json()["payload"]["data"])
    except (KeyError, TypeError, ValueError):
        raise _unreachable(settings, "the answer is not one of Google Secret Manager") from None


def _message(answer: Any) -> str:
    """Return what Google says about a request that it refuses."""
    try:
        return str(answer.json()["error"]["message"])
    except (KeyError, TypeError, ValueError):
        return str(answer.reason)


def _where(settings: ConnectionSettings) -> str:
    return f"{settings.address}, secret_ref {settings.secret_ref}"


def _unusable(settings: ConnectionSettings, why: str) -> CdcError:
    return ConfigurationError(
        f"the secret {why}",
        where=_where(settings),
        hint="store the password itself, or a JSON object with the field `password`",
    )


def _refused(settings: ConnectionSettings, why: object) -> CdcError:
    return ConfigurationError(
        f"this process cannot read the password from the secret store: {why}",
        where=_where(settings),
        hint="allow it to the identities of the machines on which Airflow's tasks, Spark's driver and its executors "
        "run (AWS: secretsmanager:GetSecretValue; Google: secretmanager.versions.access)",
    )


def _unreachable(settings: ConnectionSettings, why: object) -> CdcError:
    return SourceUnavailable(
        f"the secret store does not answer: {why}",
        where=_where(settings),
        hint="retry the task when it answers again. In a network without a route to it, give the machines of Airflow's "
        "tasks, Spark's driver and its executors one (AWS: an endpoint of the VPC; Google: Private Google Access)",
    )
