"""A process between a task and its ``spark-submit``: however the task dies, everything that it started dies, too.

Nothing else can do that: a task that gets SIGKILL runs no more code, and Spark's processes outlive whoever started
them. They would go on reading the source and writing to the lake beside the task's next try.

It is run as a script (``python -I -S guardian.py FOLDER TASK SUPERVISOR COMMAND…``) and imports nothing but the
standard library, so that it starts at once. Twice a second it checks that the task is still its parent, and that
the supervisor is still the task's. If not, on SIGTERM, or when ``COMMAND`` has ended, it kills all processes that
descend from the command, even those that left its process group, and removes the scratch folder. Should the
guardian itself be killed at once, the kernel kills ``spark-submit`` (``PR_SET_PDEATHSIG``), the driver notices
(``jobs.runtime.app``), and the folder is removed by the task or by a later one (``scratch``).
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
"""The file in a scratch folder that is locked by whoever still needs the folder."""

_LOOK_SECONDS = 0.5
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SIGNALS = {signal.SIGCHLD, *_ENDING}


def command(folder: Path, supervisor: int) -> list[str]:
    """What to put before the command that is to be guarded by the calling process's guardian.

    :param supervisor: the process whose death is the caller's, too, and that must be its parent; 0: none.
    """
    return [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid()), str(supervisor)]


def main(folder: str, task: int, supervisor: int, guarded: Sequence[str]) -> int:
    """Run a command to its end or the task's, and return its exit status; negative for a signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    guardian = os.getpid()
    # The task handles the signals to its process group; they must not reach this process.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # Processes that lose their parent become children of this one, so they are found.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lock = (Path(folder) / LOCK).open("rb")
    fcntl.flock(lock, fcntl.LOCK_SH)

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if os.getppid() != guardian:
            os._exit(1)

    status: int | None = None
    try:
        # Kept: were it collected, it would take the status of a child that has ended already.
        child = subprocess.Popen(guarded, preexec_fn=tie)
        while status is None and os.getppid() == task and supervisor in (0, _parent(task)):
            signal_info = signal.sigtimedwait(_SIGNALS, _LOOK_SECONDS)
            # Who was stopped, and goes on when the time is over, gets an answer that means nothing (a bug of CPython).
            if signal_info is not None and signal_info.si_signo in _ENDING:
                break
            status = _reap().get(child.pid)
    finally:
        _end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
    return -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)


def _reap() -> dict[int, int]:
    """The status of each child that has ended."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def _parent(pid: int) -> int:
    """The parent of a process; 0 if there is no such process."""
    try:
        # The name, in brackets, may hold anything.
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
        # End the same way as the command did: by the same signal.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), -code)
    sys.exit(code)
