"""The settings for access to an object store: credentials, endpoint and region, as an Airflow connection names them.

A process has at most one set of settings at a time. The settings apply to all folders in stores of one kind. For
folders in other stores, and for all folders of a process without settings, the store's own library finds the settings
in the environment: in variables, in files, and in the role of the machine.

The settings may contain secrets. `Storage` is pickled without the settings, and Spark tasks get the settings separately
from their work (`jobs.runtime.tasks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import ConfigurationError

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
        where="parameter storage_conn_id",
        hint="name a connection of type aws for s3://, google_cloud_platform for gs://, wasb or adls for abfs://",
    )
