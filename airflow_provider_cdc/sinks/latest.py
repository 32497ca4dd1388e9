"""``<target>/<schema>.<table>/_latest.json``: the head of a table, replaced by newer copies of the same source only.

Two runs may publish at the same time. On a local disk one waits for the other. An object store has no lock that
pyarrow.fs could take, so each run first writes down its claim, and looks at all claims again after it wrote: whoever
overwrote a newer copy, slowly, finds that one's claim and puts it back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from pyarrow import fs

from airflow_provider_cdc.core.copies.head import (
    Copy,
    decode_copy,
    describe,
    encode_copy,
    is_newer,
    is_of_another_source,
    known_source,
    parsed_position_of,
    source_of,
)
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, PublishIncomplete

LATEST = "_latest.json"
CLAIMS = "_claims"
CLAIM_LIFE = timedelta(days=1)
"""No writer stalls for longer between reading what is there and writing."""

_LOCK_SECONDS = 60.0
_ROUNDS = 20


def read_latest(target: Storage, folder: str) -> Copy | None:
    """The record of a table's latest copy; None: it has none.

    :raises ManifestError: the file is there and holds something else.
    """
    try:
        return _read(target, f"{folder}/{LATEST}")
    except FileNotFoundError:
        return None


def check_source(target: Storage, folder: str, source: Mapping[str, str], position: Position) -> None:
    """Make sure that the copies in ``folder`` are not those of another source than ``source``.

    :param position: one that the source has.
    :raises ConfigurationError: they are.
    """
    current = read_latest(target, folder)
    if current is None:
        return
    if not current.source:
        current = replace(current, source=_recorded_source(target, current.run_id))
    if is_of_another_source(current, source, position):
        raise _another_source(target, folder, current, source)


def replace_latest(target: Storage, folder: str, latest: Copy) -> bool:
    """Make ``latest`` the table's latest copy unless there is a newer one; say whether it is now.

    :raises ConfigurationError: the copy that is there is another source's.
    :raises PublishIncomplete: others write there all the time; call it again.
    """
    with _locked(target, folder) as alone:
        if alone:
            current = _checked(target, folder, latest)
            if current is None or current.run_id == latest.run_id or is_newer(latest, current):
                target.write_json(f"{folder}/{LATEST}", encode_copy(latest))
                return True
            return False
        return _replace_by_claim(target, folder, latest)


def _replace_by_claim(target: Storage, folder: str, latest: Copy) -> bool:
    claim_name = f"{folder}/{CLAIMS}/{latest.run_id}.json"
    target.write_json(claim_name, encode_copy(latest))
    for _ in range(_ROUNDS):
        current = _checked(target, folder, latest)
        best = latest
        # A run of another source that came at the same moment may have left a claim before it was refused.
        claims = [claim for claim in _claims(target, folder, claim_name) if not _of_another(claim, latest)]
        for claim in (*claims, *([current] if current else [])):
            if claim.run_id != best.run_id and is_newer(claim, best):
                best = claim
        # Only what was read after the last write says that nobody was overwritten.
        if current is not None and current.run_id == best.run_id:
            return best.run_id == latest.run_id
        target.write_json(f"{folder}/{LATEST}", encode_copy(best))
    raise PublishIncomplete(
        "others keep on replacing the latest copy",
        where=target.uri_of(f"{folder}/{LATEST}"),
        hint="run the task again: it completes what was begun",
    )


def _claims(target: Storage, folder: str, own: str) -> Iterator[Copy]:
    """The claims of runs that publish now or did lately. Older ones are removed.

    The store's clock alone says how old they are: machines differ, and what is published now may have been decided long
    ago.

    :param own: the claim that has just been written.
    """
    times = target.times(f"{folder}/{CLAIMS}")
    for name, written in times.items():
        if own in times and times[own] - written > CLAIM_LIFE:
            target.delete_file(name)
            continue
        with suppress(FileNotFoundError):
            yield _read(target, name)


def _checked(target: Storage, folder: str, latest: Copy) -> Copy | None:
    current = read_latest(target, folder)
    if current is not None and _of_another(current, latest):
        raise _another_source(target, folder, current, latest.source)
    return current


def _of_another(copy: Copy, latest: Copy) -> bool:
    """Whether ``copy`` is of another source than ``latest``, as far as that is known."""
    if not latest.source or copy.run_id == latest.run_id:
        return False
    another = is_of_another_source(copy, latest.source, parsed_position_of(latest))
    # A run that began before another server took over may end after one that began later.
    if another and copy.source:
        another = is_of_another_source(latest, copy.source, parsed_position_of(copy))
    return another


def _another_source(target: Storage, folder: str, current: Copy, source: Mapping[str, str]) -> ConfigurationError:
    return ConfigurationError(
        f"the copies here are of another source: {describe(known_source(current))}; this run's is {describe(source)}",
        where=target.uri_of(folder),
        hint="give each source a folder of its own: {source} in the target stands for the id of the connection, as in "
        f"s3://bucket/lake/{{source}}; if both are the same database, moved to another server, remove {LATEST} there",
    )


def _recorded_source(target: Storage, run_id: str) -> dict[str, str]:
    """What the manifest of a run says of its source, for copies that do not say it themselves."""
    try:
        data = target.read_json(f"_runs/{run_id}/manifest.json")
    except FileNotFoundError:
        return {}
    if not isinstance(data, dict) or "kind" not in data:
        return {}
    return source_of(data["kind"], data.get("identity") or {}, data.get("source_conn_id", ""))


def _read(target: Storage, name: str) -> Copy:
    data = target.read_json(name)
    try:
        copy = decode_copy(data, target.uri_of(name))
        if not all(isinstance(file.get("name"), str) for file in copy.files):
            raise ManifestError("one of its files has no name", where=target.uri_of(name))
        return copy
    except ManifestError as error:
        raise ManifestError(
            f"it does not say which run's copy is the latest: {error.message}",
            where=target.uri_of(name),
            hint="restore the file; or remove it: the next run that is published writes it anew",
        ) from None


@contextmanager
def _locked(target: Storage, folder: str) -> Iterator[bool]:
    """Keep every other process of any machine away from the folder's head; False: this store has no lock for that.

    The kernel frees it when the holder dies, and the folder itself is what is locked: nothing is left behind.
    """
    if not isinstance(target.filesystem, fs.LocalFileSystem):
        yield False
        return
    target.make_folder(folder)
    descriptor = os.open(target.path(folder), os.O_RDONLY)
    try:
        yield _lock(descriptor, target.uri_of(folder))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, where: str) -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PublishIncomplete(
                    f"another run has been publishing here for {_LOCK_SECONDS:.0f} seconds",
                    where=where,
                    hint="run the task again when that one is done",
                ) from None
            time.sleep(0.02)
        except OSError as error:
            # Some network file systems lock no folders.
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            return False
        else:
            return True
