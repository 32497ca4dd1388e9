"""The guardian: a process between a task and its ``spark-submit``. When the task dies, the guardian ends all processes
that the task started.

The task cannot do this itself, because after SIGKILL it runs no more code, and Spark's processes outlive their parent.
Without the guardian, these processes would keep reading the source and writing to the lake while the task's next try
runs.

The guardian runs as a script (``python -I -S guardian.py FOLDER TASK SUPERVISOR COMMAND…``). The script imports only
the standard library, so that it starts quickly. Twice a second it checks that the task is still its parent, and that
the supervisor is still the task's parent. If one of these conditions is no longer true, on SIGTERM, or when ``COMMAND``
has ended, the guardian kills all descendants of the command, including processes that left the command's process group.
The guardian then removes the scratch folder. If the guardian itself is killed by SIGKILL, the kernel kills
``spark-submit`` (``PR_SET_PDEATHSIG``), and the driver notices this (``jobs.runtime.app``). The folder is then removed
by the task or by a later task (``scratch``).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

LOCK = ".lock"
"""The file in a scratch folder that each process locks while it needs the folder."""

_POLL_SECONDS = 0.5
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SIGNALS = {signal.SIGCHLD, *_ENDING}


def command(folder: Path, supervisor: int) -> list[str]:
    """Return the first part of the command line that starts a guardian for the calling process. The caller appends the
    command to guard.

    :param supervisor: the id of the caller's parent process. If this process dies, the caller counts as dead. 0: there
        is no supervisor.
    """
    return [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid()), str(supervisor)]


def main(folder: str, task: int, supervisor: int, guarded: Sequence[str]) -> int:
    """Run a command until the command or the task ends, and return the exit status of the command. The status is
    negative if a signal ended the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    guardian = os.getpid()
    # Start a separate session, so that signals to the task's process group reach only the task.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # Make orphaned descendants children of this process, so that they can be found.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lock = (Path(folder) / LOCK).open("rb")
    fcntl.flock(lock, fcntl.LOCK_SH)

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.getppid() != guardian:
            os._exit(1)

    status: int | None = None
    ending_signal = signal.SIGKILL
    try:
        # Keep the reference. If the Popen object were garbage-collected, it would reap the child, and the exit status
        # would be lost.
        child = subprocess.Popen(guarded, preexec_fn=tie)
        while status is None and os.getppid() == task and supervisor in (0, _parent(task)):
            signal_info = signal.sigtimedwait(_SIGNALS, _POLL_SECONDS)
            # If SIGSTOP and SIGCONT interrupt the wait until after its timeout, the result is meaningless (a bug of
            # CPython).
            if signal_info is not None and signal_info.si_signo in _ENDING:
                ending_signal = signal.Signals(signal_info.si_signo)
                break
            status = _reap().get(child.pid)
    finally:
        _end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
    return -ending_signal if status is None else os.waitstatus_to_exitcode(status)


def _reap() -> dict[int, int]:
    """Reap the children that have ended, and return their statuses by process id."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def _parent(pid: int) -> int:
    """Return the id of the parent of a process, or 0 if the process does not exist."""
    try:
        # Split the text after the last closing parenthesis. The process name is in parentheses, and may contain any
        # character.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _descendants() -> Iterator[int]:
    children = defaultdict(list)
    for child in [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]:
        children[_parent(child)].append(child)
    below = [os.getpid()]
    while below:
        child_pids = children[below.pop()]
        yield from child_pids
        below += child_pids


def _end_descendants() -> None:
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        _reap()
        descendants = list(_descendants())
        if not descendants:
            return
        for pid in descendants:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    if code < 0:
        # End this process by the same signal that ended the command.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), -code)
    sys.exit(code)
