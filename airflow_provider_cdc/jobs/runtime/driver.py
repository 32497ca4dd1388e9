"""The interface between an Airflow task and the Spark driver that it starts.

This module does not import PySpark, because the import takes longer than everything else in a task that has nothing to
submit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pwd
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_cdc.core.storage.uri import StorageSettings, current
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings

Settings = TypeVar("Settings", ConnectionSettings, CatalogSettings, StorageSettings)

SOURCE_VARIABLE = "CDC_SOURCE"
"""The environment variable that passes the source's settings, including the password, to the driver. Arguments and
properties are not used, because process lists and Spark's event log show them."""
CATALOG_VARIABLE = "CDC_CATALOG"
"""The environment variable that passes the catalog's settings, including its secrets."""
STORAGE_VARIABLE = "CDC_STORAGE"
"""The environment variable that passes the settings for access to the object store, including its secrets."""
TRY_VARIABLE = "CDC_TRY"
"""The environment variable that passes the token of the try."""
JVM_VARIABLE = "SPARK_SUBMIT_OPTS"
PACKAGE_VARIABLE = "CDC_PACKAGE"
"""The environment variable with the path of the zip that the driver itself sends to the executors. Without it,
``spark-submit`` sends the zip."""


_handed: dict[str, str] = {}
"""Variables that this process did not get in its environment, and that its child processes do not inherit."""


def take_over(variables: Mapping[str, str]) -> None:
    """Set variables of `to_environment` that this process got in another way than by its environment."""
    _handed.update(variables)


def has_user_entry() -> bool:
    """Return whether the user of this process has an entry in passwd. In OpenShift, it has none."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def check_pyspark() -> None:
    """Check that ``pyspark`` and ``pyspark-client``, which install into the same folder, have the same version.

    :raises ConfigurationError: the versions differ, so the folder is a mixture of both.
    """
    try:
        client = version("pyspark-client")
        full = version("pyspark")
    except PackageNotFoundError:
        return
    if client != full:
        raise ConfigurationError(
            f"pyspark {full} and pyspark-client {client} are installed, and both install into the folder pyspark/",
            hint=f"pip install --force-reinstall pyspark=={full} pyspark-client=={full}",
        )


def driver_jvm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variable with JVM options. ``spark-submit`` and PySpark start the driver with these
    options.

    Each step has its own JVM, which usually runs for a few seconds and schedules a few dozen tasks. The optimizing
    compiler of the JVM would use more processor time than it saves, so it is disabled. Options that the user has set
    take precedence.
    """
    return {JVM_VARIABLE: f"-XX:TieredStopAtLevel=1 {environment.get(JVM_VARIABLE, '')}".strip()}


def to_environment(settings: ConnectionSettings, catalog: CatalogSettings | None = None) -> dict[str, str]:
    """Return the variables that `settings_from_environment`, `catalog_from_environment` and `storage_from_environment`
    read. The settings of the object store are those of this process."""
    variables = {SOURCE_VARIABLE: json.dumps(asdict(settings))}
    if catalog is not None:
        variables[CATALOG_VARIABLE] = json.dumps(asdict(catalog))
    if (storage := current()) is not None:
        variables[STORAGE_VARIABLE] = json.dumps(asdict(storage))
    return variables


def to_argument(text: str) -> str:
    """Return ``text`` as an argument of a Spark app. The argument has only ASCII characters, because the JVM of
    ``spark-submit`` replaces all others by question marks if the locale of the worker is not UTF-8."""
    return text if text.isascii() else json.dumps(text)


def from_argument(argument: str) -> str:
    """Return the text that `to_argument` converted. No URI begins with a quote."""
    return str(json.loads(argument)) if argument.startswith('"') else argument


def error_file(task_id: str, token: str) -> str:
    """Return the name of the record of a step's failure. Each try has its own file, because a try that was presumed
    dead may still fail later.

    :param token: the token of the try; empty if there is none.
    """
    return f"errors/{task_id}-{token}.json" if token else f"errors/{task_id}.json"


def done_file(task_id: str) -> str:
    """Return the name of the file which shows that an application finished a step on behalf of the step's task."""
    return f"done/{task_id}.json"


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> ConnectionSettings:
    """Return the settings of the source that were passed to ``spark-submit``.

    :raises ConfigurationError: the variable is not set, or does not contain settings.
    """
    settings = _from_environment(SOURCE_VARIABLE, ConnectionSettings, environment)
    replicas: Any = settings.replicas
    log_server: Any = settings.log_server
    return replace(
        settings,
        replicas=tuple(ConnectionSettings(**{**one, "replicas": ()}) for one in replicas),
        log_server=log_server and ConnectionSettings(**{**log_server, "replicas": ()}),
    )


def catalog_from_environment(environment: Mapping[str, str] = os.environ) -> CatalogSettings:
    """Return the settings of the catalog that were passed to ``spark-submit``.

    :raises ConfigurationError: the variable is not set, or does not contain settings.
    """
    return _from_environment(CATALOG_VARIABLE, CatalogSettings, environment)


def storage_from_environment(environment: Mapping[str, str] = os.environ) -> StorageSettings | None:
    """Return the settings of the object store that were passed to ``spark-submit``; None: there are none.

    :raises ConfigurationError: the variable does not contain settings.
    """
    if not {**environment, **_handed}.get(STORAGE_VARIABLE):
        return None
    return _from_environment(STORAGE_VARIABLE, StorageSettings, environment)


def _from_environment(variable: str, kind: type[Settings], environment: Mapping[str, str]) -> Settings:
    hint = "start the app through its operator, which sets it from the Airflow connection"
    text = {**environment, **_handed}.get(variable)
    if not text:
        raise ConfigurationError(f"the environment variable {variable} is not set", hint=hint)
    try:
        return kind(**json.loads(text))
    except (TypeError, ValueError):
        # Show neither the text nor the parser's message, because the text contains the password.
        raise ConfigurationError(
            f"the environment variable {variable} does not contain connection settings", hint=hint
        ) from None


# The output of a driver is the log of its task. Airflow's Spark hook would log every line at the same level, so
# warnings would not stand out.


_NOISE = re.compile(
    # The JVM and Spark's launcher print these lines, regardless of the log settings.
    r"WARNING: Using incubator modules: |"
    r"Using Spark's default log4j profile: |"
    r'Setting default log level to "|'
    r"To adjust logging level use sc\.setLogLevel"
)
_LEVELS = (
    (logging.ERROR, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d (?:ERROR|FATAL) |\w+ failed: ")),
    (logging.WARNING, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d WARN |(?:\w+: )?WARNING: ")),
)


def log_line(line: str, log: Any) -> None:
    """Log a line of a driver's output at the level that the line has. Spark's start-up noise is dropped."""
    text = line.rstrip()
    if _NOISE.match(text):
        return
    level = next((level for level, pattern in _LEVELS if pattern.match(text)), logging.INFO)
    log.log(level, "%s", text)


# Packs this package into a zip, for executors without the package, because ``spark-submit --py-files`` accepts .zip
# files, but not .whl files.


PACKAGE = Path(__file__).resolve().parents[2]
SHIPPED = ("core", "sources", "sinks", "jobs")
"""The subpackages that run in executors. Executors do not need the Airflow code."""

# The zip's own __init__ unpacks the zip once per machine and version into the user's cache, and modules are imported
# from there. Modules in a zip would be compiled in every process. Compiled kernels are cached by the path of their
# source, and a zip has another path in each Spark application. If the user has no cache folder, unpack the zip into the
# folder that contains the zip file. On each machine, this folder belongs to the application.
_INIT = '''"""airflow-provider-cdc, as sent to executors: see jobs/runtime/driver.py."""

import os
import tempfile
import zipfile

__version__ = {version!r}


def _unpack(archive, parent):
    folder = os.path.join(parent, {digest!r})
    if not os.path.isdir(folder):
        os.makedirs(parent, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as work:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(work)
            try:
                os.rename(os.path.join(work, "airflow_provider_cdc"), folder)
            except OSError:
                if not os.path.isdir(folder):
                    raise
    return folder


def _place():
    archive = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for parent in (os.path.join(cache, "airflow-provider-cdc", "shipped"), archive + ".unpacked"):
        try:
            return [_unpack(archive, parent)]
        except OSError:
            pass
    return __path__  # The zip cannot be unpacked: import the modules from the zip, which is slower.


__path__ = _place()
'''


def package_zip(folder: Path) -> Path:
    """Write the zip to ``folder``, and return its path. The name and the content of the zip depend only on the
    package."""
    sources = {f"airflow_provider_cdc/{path.relative_to(PACKAGE).as_posix()}": path for path in _shipped()}
    contents = {name: path.read_bytes() for name, path in sorted(sources.items())}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    init = _INIT.format(version=_version(), digest=digest.hexdigest()[:16])
    contents["airflow_provider_cdc/__init__.py"] = init.encode()
    target = folder / "airflow_provider_cdc.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            # Use the same time in every zip, so that equal packages give equal files.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target


def _shipped() -> Iterator[Path]:
    yield from (PACKAGE / f"{name}.py" for name in ("__init__", "compat", "counted", "errors"))
    for name in SHIPPED:
        yield from (PACKAGE / name).rglob("*.py")


def _version() -> str:
    from airflow_provider_cdc import __version__

    return __version__
