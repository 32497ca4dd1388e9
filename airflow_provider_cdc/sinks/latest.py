"""The head of a table, ``<target>/<schema>.<table>/_latest.json``. Only a newer copy of the same source replaces it.

Two runs may publish at the same time. On a local disk, one run waits for the other run. On an object store with
conditional writes, a run replaces the head only if it is still the head that the run has read. Other object stores have
no such means, so on these stores, each run first writes a claim, and reads all claims again after it has written the
head. A slow run that overwrote a newer head finds the claim of the newer copy, and makes the newer copy the head again.
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
from typing import Any

from pyarrow import fs

from airflow_provider_cdc.core.copies.head import (
    Copy,
    decode_copy,
    describe,
    encode_copy,
    is_newer,
    is_of_another,
    is_of_another_source,
    known_source,
    source_of,
)
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, PublishIncomplete

LATEST = "_latest.json"
CLAIMS = "_claims"
CLAIM_LIFE = timedelta(days=1)
"""The time for which a claim is kept. No writer is expected to stall for longer between reading the head and writing
it."""

_ANSWER = ".answer.json"
"""The end of the name of a claim with which a run with conditional writes answers the claims of others."""
_LOCK_SECONDS = 60.0
_ROUNDS = 20


def read_latest(target: Storage, folder: str) -> Copy | None:
    """Return the record of a table's latest copy; None: the table has no copy.

    :raises ManifestError: the file exists and is not a valid record.
    """
    try:
        return _read(target, f"{folder}/{LATEST}")
    except FileNotFoundError:
        return None


def check_source(target: Storage, folder: str, source: Mapping[str, str], position: Position) -> None:
    """Check that no copy in ``folder`` is known to be a copy of a source other than ``source``.

    :param position: a position that the source has reached.
    :raises ConfigurationError: a copy is a copy of another source.
    """
    current = read_latest(target, folder)
    if current is None:
        return
    if not current.source:
        current = replace(current, source=_recorded_source(target, current.run_id))
    if is_of_another_source(current, source, position):
        raise _another_source(target, folder, current, source)


def replace_latest(target: Storage, folder: str, latest: Copy) -> bool:
    """Make ``latest`` the table's latest copy, unless the table has a newer copy. Return whether ``latest`` is now the
    latest copy.

    :raises ConfigurationError: the existing copy is of another source.
    :raises PublishIncomplete: other runs kept replacing the head; call this function again.
    """
    with _locked(target, folder) as alone:
        if alone:
            current = _checked(target, folder, latest)
            if current is None or current.run_id == latest.run_id or is_newer(latest, current):
                target.write_json(f"{folder}/{LATEST}", encode_copy(latest))
                return True
            return False
        if not isinstance(target.filesystem, fs.LocalFileSystem) and target.has_conditional_writes:
            return _replace_by_condition(target, folder, latest)
        return _replace_by_claim(target, folder, latest)


def _replace_by_condition(target: Storage, folder: str, latest: Copy) -> bool:
    name, data = f"{folder}/{LATEST}", encode_copy(latest)
    for _ in range(_ROUNDS):
        present = target.read_versioned(name)
        current, version = (None, None) if present is None else (_copy_in(target, name, present[0]), present[1])
        _check_same_source(target, folder, current, latest)
        if current is not None and current.run_id != latest.run_id and not is_newer(latest, current):
            return False
        if present is not None and present[0] == data:
            break
        if target.replace_json(name, data, version):
            break
    else:
        raise _gave_up(target, folder)
    # A run that found no conditional writes (of an earlier version of this package, or with other credentials) may have
    # read an older head, and be about to overwrite this one. It wrote its claim before it read the head.
    return not _others_claim(target, folder, name) or _replace_by_claim(target, folder, latest, _ANSWER)


def _others_claim(target: Storage, folder: str, head: str) -> bool:
    """Return whether a run without conditional writes publishes now. Remove old claims.

    :param head: the name of the head, which was written a moment ago.
    """
    claims = {name: time for name, time in target.times(f"{folder}/{CLAIMS}").items() if not name.endswith(_ANSWER)}
    if not claims:
        return False
    now = target.times(folder)[head]
    for name, written in claims.items():
        if now - written > CLAIM_LIFE:
            target.delete_file(name)
    return any(now - written <= CLAIM_LIFE for written in claims.values())


def _replace_by_claim(target: Storage, folder: str, latest: Copy, suffix: str = ".json") -> bool:
    claim_name = f"{folder}/{CLAIMS}/{latest.run_id}{suffix}"
    target.write_json(claim_name, encode_copy(latest))
    for _ in range(_ROUNDS):
        current = _checked(target, folder, latest)
        best = latest
        # A run of another source that started at the same time may have written a claim before the run was rejected.
        claims = [claim for claim in _claims(target, folder, claim_name) if not is_of_another(claim, latest)]
        for claim in (*claims, *([current] if current else [])):
            if claim.run_id != best.run_id and is_newer(claim, best):
                best = claim
        # Return only if the head was read after the last write. Such a read shows that the write has not replaced a
        # newer head.
        if current is not None and current.run_id == best.run_id:
            return best.run_id == latest.run_id
        target.write_json(f"{folder}/{LATEST}", encode_copy(best))
    raise _gave_up(target, folder)


def _gave_up(target: Storage, folder: str) -> PublishIncomplete:
    return PublishIncomplete(
        "could not replace the record of the latest copy, because other runs replaced it during each attempt",
        where=target.uri_of(f"{folder}/{LATEST}"),
        hint="run the task again: it completes the publication",
    )


def _claims(target: Storage, folder: str, own: str) -> Iterator[Copy]:
    """Yield the claims of runs that publish now, or published recently. Remove older claims.

    The ages of claims are computed from the store's clock only, because the clocks of machines differ, and a copy that
    is published now may have been committed long ago.

    :param own: the claim that this run has just written.
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
    _check_same_source(target, folder, current, latest)
    return current


def _check_same_source(target: Storage, folder: str, current: Copy | None, latest: Copy) -> None:
    if current is not None and is_of_another(current, latest):
        raise _another_source(target, folder, current, latest.source)


def _another_source(target: Storage, folder: str, current: Copy, source: Mapping[str, str]) -> ConfigurationError:
    return ConfigurationError(
        f"this folder has copies of another source: {describe(known_source(current))}. The source of this run is "
        f"{describe(source)}",
        where=target.uri_of(folder),
        hint="use a separate folder for each source, such as s3://bucket/lake/{source}: {source} stands for the id of "
        f"the connection. If the same database was moved to another server, remove {LATEST} from this folder",
    )


def _recorded_source(target: Storage, run_id: str) -> dict[str, str]:
    """Return the source that the manifest of a run names, for copies whose records do not name it."""
    try:
        data = target.read_json(f"_runs/{run_id}/manifest.json")
    except FileNotFoundError:
        return {}
    if not isinstance(data, dict) or "kind" not in data:
        return {}
    return source_of(data["kind"], data.get("identity") or {}, data.get("source_conn_id", ""))


def _read(target: Storage, name: str) -> Copy:
    return _copy_in(target, name, target.read_json(name))


def _copy_in(target: Storage, name: str, data: Any) -> Copy:
    try:
        copy = decode_copy(data, target.uri_of(name))
        if not all(isinstance(file.get("name"), str) for file in copy.files):
            raise ManifestError("a file in the record has no name", where=target.uri_of(name))
        return copy
    except ManifestError as error:
        raise ManifestError(
            f"the record of the latest copy is damaged: {error.message}",
            where=target.uri_of(name),
            hint="restore the file, or remove it: the next run that publishes writes a new one",
        ) from None


@contextmanager
def _locked(target: Storage, folder: str) -> Iterator[bool]:
    """Lock the folder's head against all other processes on all machines. Yield False if this store has no such lock.

    The kernel releases the lock when its holder dies. The folder itself is locked, so no lock file is left behind.
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
                    hint="run the task again when the other run has finished",
                ) from None
            time.sleep(0.02)
        except OSError as error:
            # Some network file systems cannot lock folders.
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            return False
        else:
            return True
