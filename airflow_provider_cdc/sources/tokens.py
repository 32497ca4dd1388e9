"""The password of a session: that of the connection, the secret that the connection names (`sources.secret_store`), or
a token of AWS, Google or Microsoft.

A token opens a session, and then expires. The session outlives it. So the process that opens a session makes the token:
a driver and its executors need no new token from Airflow, however long a step takes. The clients of the three clouds
cache their credentials, and renew them in time.

The secrets from which tokens are made travel with the settings, like a password. If the connection has none, each
process uses the identity of its own machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_cdc.compat import hide_answers_of_aws
from airflow_provider_cdc.errors import CdcError, ConfigurationError, LoginRefused, SourceUnavailable
from airflow_provider_cdc.sources.secret_store import forget, read_secret

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.source import ConnectionSettings

RDS_IAM, CLOUDSQL_IAM, ENTRA = "rds_iam", "cloudsql_iam", "entra"
"""The values of ``ConnectionSettings.auth`` for tokens of Amazon, Google and Microsoft."""

_EXTRAS = {RDS_IAM: "aws", CLOUDSQL_IAM: "gcs", ENTRA: "azure"}
"""The extra of this package that installs the client of each cloud."""
_REFUSED = {
    RDS_IAM: "create the database user for IAM authentication (MySQL: AWSAuthenticationPlugin, PostgreSQL: GRANT "
    "rds_iam), allow rds-db:connect to the identity, and enter the endpoint of the instance as host",
    CLOUDSQL_IAM: "add the service account as an IAM user of the instance, with the role cloudsql.instanceUser, and "
    "enter the name of that user as login",
    ENTRA: "create the database user for this identity of Microsoft Entra",
}
Opened = TypeVar("Opened")

_RDS_SECONDS = 900
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/sqlservice.login"
_ENTRA_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
_lock = threading.Lock()


def password_of(settings: ConnectionSettings) -> str:
    """Return the password with which a session is opened now.

    :raises ConfigurationError: the client of the cloud is not installed, or this process has no identity, or may not
        read the secret that the connection names.
    :raises LoginRefused: the cloud refuses the identity.
    :raises SourceUnavailable: the cloud does not answer.
    """
    if not (settings.secret_ref or settings.auth):
        return settings.password
    try:
        return read_secret(settings) if settings.secret_ref else _TOKENS[settings.auth](settings)
    except ImportError as error:
        raise ConfigurationError(
            f"the login with a token ({settings.auth}) needs a package that is not installed: {error}",
            where=settings.address,
            hint=f"pip install 'airflow-provider-cdc[{_EXTRAS[settings.auth]}]' in the Python environment of Airflow "
            "and in that of Spark",
        ) from error
    except CdcError as error:
        # The stack frames have secrets in local variables.
        raise error.with_traceback(None) from None


def logging_in(settings: ConnectionSettings, log_in: Callable[[], Opened]) -> Opened:
    """Return the result of ``log_in``. If the server refuses the secret that the connection names, and the store has
    another one now, log in once more.

    :param log_in: logs in with `password_of`, and raises `refused_login`.
    """
    # No local variable has the secret, because an error keeps the frames through which it went.
    used = hash(password_of(settings)) if settings.secret_ref else 0
    try:
        return log_in()
    except LoginRefused:
        # The refusal made `password_of` read the secret anew. More wrong logins could lock the account.
        if not settings.secret_ref or hash(password_of(settings)) == used:
            raise
    return log_in()


def refused_login(settings: ConnectionSettings, message: str, hint: str) -> LoginRefused:
    """Return the error for a login that the server has refused.

    :param message: what the server said.
    :param hint: what to do if the login never worked.
    """
    forget(settings)
    if settings.auth:
        return LoginRefused(f"{message} (the password was a token: {settings.auth})", where=settings.address,
                            hint=_REFUSED[settings.auth])  # fmt: skip
    return LoginRefused(
        message,
        where=settings.address,
        hint=f"{hint}. If the password was changed while the task ran, see that the connection has the present one, "
        "and retry the task: finished work is kept",
    )


def _rds(settings: ConnectionSettings) -> str:
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    given = settings.credentials
    query = {"Action": "connect", "DBUser": settings.user}
    request = AWSRequest("GET", f"https://{settings.host}:{settings.port}/", params=query)
    with _aws_errors(settings):
        credentials = _aws_credentials(tuple(sorted(given.items())))
        if credentials is None:
            raise _no_identity(settings, "AWS")
        # The token is signed here, without a request to AWS. Only the credentials may have to be renewed.
        frozen = credentials.get_frozen_credentials()
        SigV4QueryAuth(frozen, "rds-db", given["region"], expires=_RDS_SECONDS).add_auth(request)
    return str(request.url).removeprefix("https://")


@lru_cache(maxsize=16)
def _aws_credentials(given: tuple[tuple[str, str], ...]) -> Any:
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import Session

    hide_answers_of_aws()
    options, session = dict(given), Session()
    if access_key := options.get("access_key"):
        session.set_credentials(access_key, options.get("secret_key", ""), options.get("session_token") or None)
    credentials = session.get_credentials()
    role = options.get("role_arn")
    if not role or credentials is None:
        return credentials

    def client(service: str, **arguments: Any) -> Any:
        return session.create_client(service, region_name=options["region"], **arguments)

    arguments = json.loads(options.get("role_arguments", "{}"))
    fetcher = AssumeRoleCredentialFetcher(client, credentials, role, extra_args=arguments)
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


@contextmanager
def _aws_errors(settings: ConnectionSettings) -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        answer: Mapping[str, Any] = error.response.get("Error", {})
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
            raise _unreachable(settings, "AWS", answer.get("Code")) from None
        raise _identity_refused(settings, "AWS", f"{answer.get('Code')}: {answer.get('Message')}") from None
    except (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.MetadataRetrievalError,
        exceptions.CredentialRetrievalError,
    ) as error:
        raise _unreachable(settings, "AWS", error) from None
    except exceptions.BotoCoreError as error:
        raise _identity_refused(settings, "AWS", error) from None


def _cloudsql(settings: ConnectionSettings) -> str:
    from google.auth import exceptions
    from google.auth.transport.requests import Request

    try:
        credentials = _google_credentials(settings.credentials.get("key", ""))
        with _lock:
            if not credentials.valid:
                credentials.refresh(Request())
            return str(credentials.token)
    except exceptions.DefaultCredentialsError:
        raise _no_identity(settings, "Google") from None
    except ValueError as error:
        # The message may show a part of the key.
        raise _identity_refused(settings, "Google", f"the key is invalid ({type(error).__name__})") from None
    except exceptions.GoogleAuthError as error:
        raise (_unreachable if error.retryable else _identity_refused)(settings, "Google", error) from None


@lru_cache(maxsize=16)
def _google_credentials(key: str) -> Any:
    import google.auth
    from google.oauth2 import service_account

    if key:
        kind: Any = service_account.Credentials
        return kind.from_service_account_info(json.loads(key), scopes=[_GOOGLE_SCOPE])
    return google.auth.default(scopes=[_GOOGLE_SCOPE])[0]


def _entra(settings: ConnectionSettings) -> str:
    from azure.core import exceptions
    from azure.identity import CredentialUnavailableError

    try:
        return str(_azure_credentials(tuple(sorted(settings.credentials.items()))).get_token(_ENTRA_SCOPE).token)
    except CredentialUnavailableError:
        raise _no_identity(settings, "Microsoft") from None
    except exceptions.ClientAuthenticationError as error:
        raise _identity_refused(settings, "Microsoft", error.message.splitlines()[0]) from None
    except exceptions.AzureError as error:
        raise _unreachable(settings, "Microsoft", error.message.splitlines()[0]) from None


@lru_cache(maxsize=16)
def _azure_credentials(given: tuple[tuple[str, str], ...]) -> Any:
    from azure.identity import ClientSecretCredential, DefaultAzureCredential

    options = dict(given)
    if options.get("client_secret"):
        return ClientSecretCredential(options["tenant_id"], options["client_id"], options["client_secret"])
    # The identity of the machine: a managed identity or a workload identity.
    return DefaultAzureCredential(**options)


_TOKENS: Mapping[str, Callable[[ConnectionSettings], str]] = {RDS_IAM: _rds, CLOUDSQL_IAM: _cloudsql, ENTRA: _entra}


def _no_identity(settings: ConnectionSettings, cloud: str) -> CdcError:
    return ConfigurationError(
        f"this process has no credentials for {cloud}, which it needs for a token to log in",
        where=settings.address,
        hint=f"enter credentials in the {cloud} connection that the source's connection names; or give the machine an "
        "identity, on which Airflow's tasks, Spark's driver and its executors run",
    )


def _identity_refused(settings: ConnectionSettings, cloud: str, why: object) -> CdcError:
    return LoginRefused(
        f"{cloud} gives no token to log in: {why}",
        where=settings.address,
        hint=f"correct the {cloud} connection that the source's connection names, or the rights of the identity. If "
        "its credentials were renewed while the task ran, retry the task: finished work is kept",
    )


def _unreachable(settings: ConnectionSettings, cloud: str, why: object) -> CdcError:
    return SourceUnavailable(
        f"{cloud} gave no token to log in: {why}",
        where=settings.address,
        hint="retry the task when the service answers again",
    )
