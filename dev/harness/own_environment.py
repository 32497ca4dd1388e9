"""Environments of their own for programs whose requirements conflict with those of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def interpreter(*versions: str) -> str:
    """Return the first Python of ``versions`` that this machine has, else the Python of this process.

    Searches PATH and the versions that pyenv has installed: its commands on PATH run only the selected version.
    """
    for version in versions:
        name = f"python{version}"
        for candidate in (name, *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")))):
            with suppress(OSError, subprocess.CalledProcessError):
                subprocess.run([candidate, "-c", "import ensurepip, venv"], capture_output=True, check=True)
                return candidate
    return sys.executable


def make_environment(folder: Path, *arguments: str | Path, interpreter: str = sys.executable) -> Path:
    """Create an environment in ``folder``, and return its Python.

    :param arguments: arguments of ``pip install``.
    :param interpreter: the Python that the environment has.
    """
    home = folder / "venv"
    run(interpreter, "-m", "venv", "--without-pip", home)
    python = home / "bin/python"
    install(python, folder, *arguments)
    return python


def install(python: Path, folder: Path, *arguments: str | Path) -> None:
    """Install packages into the environment of ``python``.

    :param folder: for temporary files.
    :param arguments: arguments of ``pip install``.
    """
    uv = Path(sys.executable).with_name("uv")
    command = [str(part) for part in (uv, "pip", "install", "--quiet", "--python", python, *arguments)]
    # uv leaves the locks of builds in the temporary folder.
    if subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, check=False).returncode:
        # An index may be configured for pip alone.
        run(python, "-m", "ensurepip")
        run(python, "-m", "pip", "install", "--quiet", *arguments)


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command, and return what it prints. It must succeed."""
    done = subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    return said
