"""The parts of Airflow's provider for Google that the launcher uses, for this process.

The provider requires the clients of dozens of services, and other versions than ``dev/constraints.txt`` has. So these
packages are not in the environment of the checkout: they are installed beside it, without what else they require.
"""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import airflow

from harness.cache import building, cache_directory, locked

PACKAGES = (
    "apache-airflow-providers-google==22.8.0",
    "gcloud-aio-auth==5.5.1",
    "google-api-core==2.44.0",
    "google-api-python-client==2.202.0",
    "google-auth-httplib2==0.4.4",
    "google-cloud-core==2.8.0",
    "google-cloud-dataproc==5.32.0",
    "google-cloud-secret-manager==2.32.0",
    "grpc-google-iam-v1==0.14.6",
    "httplib2==0.32.1",
    "proto-plus==1.29.0",
    "uritemplate==4.2.0",
)


def add_google_provider() -> None:
    """Install the packages, if the cache does not have them, and let this process import them."""
    folder = add_packages("google", PACKAGES)
    if str(folder / "airflow") not in airflow.__path__:
        airflow.__path__.append(str(folder / "airflow"))


def add_packages(name: str, packages: Sequence[str]) -> Path:
    """Install packages beside the environment, without what they require, if the cache does not have them. Let this
    process import them, and return their folder.

    :param name: begins the name of the folder in the cache.
    """
    folder = cache_directory() / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    with locked(name):
        if not folder.exists():
            with building(folder) as work:
                _install(work, packages)
    if str(folder) not in sys.path:
        # At the end, so that what the environment has takes precedence.
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return folder


def _install(folder: Path, packages: Sequence[str]) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    subprocess.run(command, check=True)
