"""How a driver on a Spark platform and Airflow exchange data, through the folder ``remote`` in the run's folder.

Both reach this folder, and neither can connect to the other. Airflow writes the record of a job, and may revoke it. The
driver asks for the settings of the connections, writes its output in parts, and ends when it is revoked.

The settings have passwords, so they are sealed for the one driver that asks. The driver makes a key pair in its memory,
and writes the public key. Airflow seals the settings with it. A nonce in the arguments of the job authenticates both:
a program without it can neither ask nor answer. The nonce is not in the run's folder, and opens nothing that was
recorded. Airflow answers each job once, and does not answer a revoked job.

This module imports neither Airflow nor PySpark.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, TransientError

FOLDER = "remote"
"""The folder in the run's folder."""
CODE = f"{FOLDER}/code"
POLL_SECONDS = 5.0
"""How often a driver looks whether it was revoked, and writes its output, in seconds."""
FOLLOWED_SECONDS = 3600.0
"""How long a driver works without a task that follows it, in seconds."""
LAST_SECONDS = 10.0
"""How long a driver that must end tries to write its last output, in seconds."""
ANSWER_SECONDS = 900.0
"""How long a driver waits for its settings, in seconds. Airflow's task may be between two tries."""
REVOKED = 3
"""The exit code of a driver that was revoked, that no task follows, or that has reached its deadline."""


@dataclass(frozen=True)
class JobRecord:
    """A job that a task starts. The record is written before the job is submitted.

    ``launcher``, ``target`` and the Airflow connection ``conn_id`` say where the job runs. ``step`` is the first step
    that the job executes. ``token`` identifies the job: it is a part of its name, and names the files of this module.
    ``begun`` is the digest of the beginning of the run (`core.run.ledger`). ``deadline`` is the Unix time at which the
    driver ends itself.
    """

    launcher: str
    target: str
    conn_id: str
    step: str
    token: str
    begun: str
    deadline: int


@dataclass(frozen=True)
class JobId:
    """The id that the platform gave to a job."""

    id: str


@dataclass(frozen=True)
class Follower:
    """The try of a task that follows a job. It renews this record as long as it does so. Another try replaces the
    record, and then follows the job instead. ``token`` identifies the try."""

    token: str
    renewals: int = 0


@dataclass(frozen=True)
class SettingsRequest:
    """The public key of a driver, with the proof that the driver knows the nonce."""

    key: str
    proof: str


@dataclass(frozen=True)
class SealedSettings:
    """Sealed settings, the public key of the seal, and the public key ``asked`` of the driver that they are for."""

    key: str
    sealed: str
    asked: str


def revoked_file(token: str) -> str:
    """Return the name of the file whose existence revokes a job."""
    return f"{FOLDER}/{token}.revoked.json"


def follower_file(token: str) -> str:
    """Return the name of the record of the try that follows a job."""
    return f"{FOLDER}/{token}.follower.json"


def ended_file(token: str) -> str:
    """Return the name of the file whose existence says that the platform has ended a job."""
    return f"{FOLDER}/{token}.ended.json"


def request_file(token: str) -> str:
    """Return the name of the file with which a driver asks for its settings."""
    return f"{FOLDER}/{token}.request.json"


def settings_file(token: str) -> str:
    """Return the name of the file with the sealed settings."""
    return f"{FOLDER}/{token}.settings.json"


def log_file(token: str, number: int) -> str:
    """Return the name of a part of a driver's output."""
    return f"{FOLDER}/{token}.log/{number:06d}.json"


def revoke(run: Storage, token: str) -> None:
    """Revoke a job, so that its driver ends, even if its platform does not end it."""
    run.write_json(revoked_file(token), {})


def note_ended(run: Storage, token: str) -> None:
    """Record that the platform has ended a job."""
    run.write_json(ended_file(token), {})
    # A driver that ended before it read them left them.
    run.delete_file(request_file(token))
    run.delete_file(settings_file(token))


def answer_request(run: Storage, token: str, nonce: str, settings: Mapping[str, Any], answered: str = "") -> str:
    """Give a driver its settings, if it asks for them. Return the key of the driver; empty: it did not ask.

    The answer stays in the folder until the job has ended, so that no other program gets one.

    :param settings: JSON data.
    :param answered: the key of the driver that this process has answered before, even if the answer was removed.
    :raises ConfigurationError: the program that asks does not know the nonce, or is not the one that asked first.
    """
    if not run.exists(request_file(token)) or run.exists(revoked_file(token)):
        return ""
    try:
        request = records.read(SettingsRequest, run, request_file(token))
    except ManifestError:
        # Another try has answered meanwhile.
        return ""
    if not hmac.compare_digest(request.proof.encode(), _proof(nonce, token, request.key).encode()):
        run.delete_file(request_file(token))
        raise _intrusion_error("a program that is not the driver asks for the settings of the connections", run, token)
    if answered not in ("", request.key):
        raise _second_request_error(run, token)
    own = X25519PrivateKey.generate()
    key = _text(own.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    shared = own.exchange(X25519PublicKey.from_public_bytes(base64.b64decode(request.key)))
    # Each key seals one message, so the nonce of the cipher is constant.
    cipher = ChaCha20Poly1305(_key(shared, nonce, token, request.key, key))
    sealed = cipher.encrypt(bytes(12), json.dumps(settings).encode(), None)
    given = run.create_json(settings_file(token), records.encode(SealedSettings(key, _text(sealed), request.key)))
    run.delete_file(request_file(token))
    # Two tries may answer the same driver.
    if not given and records.read(SealedSettings, run, settings_file(token)).asked != request.key:
        raise _second_request_error(run, token)
    return request.key


def request_settings(run: Storage, token: str, nonce: str) -> dict[str, Any]:
    """Ask for the settings of the connections, and wait for them.

    :raises TransientError: no task of Airflow answers.
    :raises ConfigurationError: the answer is not from Airflow.
    """
    own = X25519PrivateKey.generate()
    key = _text(own.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    records.write(run, request_file(token), SettingsRequest(key, _proof(nonce, token, key)))
    until = time.monotonic() + ANSWER_SECONDS
    while not run.exists(settings_file(token)):
        if time.monotonic() > until:
            run.delete_file(request_file(token))
            what = f"no Airflow task gave the settings of the connections within {ANSWER_SECONDS:.0f} s"
            raise TransientError(what, where=run.uri, hint="clear the task")
        time.sleep(0.5)
    sealed = records.read(SealedSettings, run, settings_file(token))
    shared = own.exchange(X25519PublicKey.from_public_bytes(base64.b64decode(sealed.key)))
    try:
        opened = ChaCha20Poly1305(_key(shared, nonce, token, key, sealed.key)).decrypt(
            bytes(12), base64.b64decode(sealed.sealed), None
        )
    except InvalidTag:
        raise _intrusion_error("the settings of the connections are not from the Airflow task", run, token) from None
    return dict(json.loads(opened))


def _second_request_error(run: Storage, token: str) -> ConfigurationError:
    return _intrusion_error("a second program asks for the settings of the connections", run, token)


def _intrusion_error(what: str, run: Storage, token: str) -> ConfigurationError:
    hint = "check who can write to the folder of the run, and read the definition of the job"
    return ConfigurationError(what, where=run.uri_of(f"{FOLDER}/{token}"), hint=hint)


def _proof(nonce: str, token: str, key: str) -> str:
    return hmac.new(nonce.encode(), f"ask {token} {key}".encode(), hashlib.sha256).hexdigest()


def _key(shared: bytes, nonce: str, *names: str) -> bytes:
    """Return the key of the cipher. Only someone who knows the nonce can derive it."""
    info = " ".join(("airflow-provider-cdc", *names)).encode()
    return HKDF(SHA256(), 32, nonce.encode(), info).derive(shared)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Output:
    """Writes what this process prints also to the run's folder, in parts. Until `start`, it does nothing."""

    def __init__(self, token: str) -> None:
        self._run: Storage | None = None
        self._token = token
        self._lines: list[str] = []
        self._collecting = threading.Lock()
        self._writing = threading.Lock()
        self._number = 0

    def start(self, run: Storage) -> None:
        """Begin to collect the output of this process."""
        self._run = Storage(run.uri)
        sys.stdout = _Copied(sys.stdout, self._take)
        sys.stderr = _Copied(sys.stderr, self._take)

    def flush(self) -> None:
        """Write the collected lines as one part. If the store fails, the lines are kept for the next part."""
        with self._writing:
            with self._collecting:
                lines, self._lines = self._lines, []
            if not lines or self._run is None:
                return
            try:
                self._run.write_json(log_file(self._token, self._number), lines)
            except Exception:
                with self._collecting:
                    self._lines = lines + self._lines
            else:
                self._number += 1

    def _take(self, text: str) -> None:
        with self._collecting:
            # Each print also writes the end of its line, on its own.
            self._lines += [line for line in text.splitlines() if line.strip()]


class _Copied:
    """A stream whose text is also passed on."""

    def __init__(self, stream: TextIO, take: Any) -> None:
        self._stream = stream
        self._take = take

    def write(self, text: str) -> int:
        self._take(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def watch(run: Storage, token: str, deadline: int, output: Output) -> None:
    """In the background, write the output, and end this process when the job is revoked, when no task has followed it
    for `FOLLOWED_SECONDS`, or at its deadline."""
    at_deadline = threading.Timer(deadline - time.time(), _end, ("its deadline has passed", output))
    watching = threading.Thread(target=_watch, args=(Storage(run.uri), token, output), name="watch")
    for thread in (at_deadline, watching):
        thread.daemon = True
        thread.start()


def _watch(run: Storage, token: str, output: Output) -> None:
    follower, renewed = None, time.monotonic()
    while True:
        time.sleep(POLL_SECONDS)
        # Any error: without this thread, the driver would work until its deadline.
        with suppress(Exception):
            if run.exists(revoked_file(token)):
                _end("Airflow has revoked it", output)
            # A change shows a follower; the clocks of the machines may differ.
            if (seen := records.read(Follower, run, follower_file(token))) != follower:
                follower, renewed = seen, time.monotonic()
        if time.monotonic() - renewed > FOLLOWED_SECONDS:
            _end(f"no task of Airflow has followed it for {FOLLOWED_SECONDS:.0f} s", output)
        output.flush()


def _end(why: str, output: Output) -> None:
    try:
        # The store may not answer, and the output may have no reader.
        writing = threading.Thread(target=_write_last, args=(why, output), daemon=True)
        writing.start()
        writing.join(LAST_SECONDS)
    finally:
        # Exit without handlers and clean-up, because another driver may have changed the state.
        os._exit(REVOKED)


def _write_last(why: str, output: Output) -> None:
    with suppress(Exception):
        print(f"this driver ends, because {why}", flush=True)
    output.flush()
