"""Environments of their own for programs whose requirements conflict with those of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def make_environment(folder: Path, *arguments: str | Path) -> Path:
    """Create an environment in ``folder``, and return its Python.

    :param arguments: arguments of ``pip install``.
    """
    home = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    command = [str(part) for part in (uv, "pip", "install", "--quiet", "--python", python, *arguments)]
    # uv leaves the locks of builds in the temporary folder.
    if subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, check=False).returncode:
        # An index may be configured for pip alone.
        run(python, "-m", "ensurepip")
        run(python, "-m", "pip", "install", "--quiet", *arguments)
    return python


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command, and return what it prints. It must succeed."""
    done = subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    return said
