"""The parts of Airflow's provider for Google that the launcher uses, for this process.

The provider requires the clients of dozens of services, and other versions than ``dev/constraints.txt`` has. So these
packages are not in the environment of the checkout: they are installed beside it, without what else they require.
"""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
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
    folder = cache_directory() / f"google-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:12]}"
    with locked("google"):
        if not folder.exists():
            with building(folder) as work:
                _install(work)
    if str(folder) not in sys.path:
        # At the end, so that what the environment has takes precedence.
        sys.path.append(str(folder))
        airflow.__path__.append(str(folder / "airflow"))
        importlib.invalidate_caches()


def _install(folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
    subprocess.run(command, check=True)
