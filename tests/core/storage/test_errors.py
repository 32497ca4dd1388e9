"""How errors of stores are classified, on the stores themselves: a full disk, a read-only folder, an S3 that fails."""

from __future__ import annotations

import errno
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage.filesystems import storage_error
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, StorageRefused, StorageUnavailable
from harness.s3_server import ADMIN, READER, s3_environment
from harness.server_process import free_port


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, credentials: tuple[str, str] = ADMIN) -> None:
    for name, value in s3_environment(endpoint, credentials).items():
        monkeypatch.setenv(name, value)


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that gives every client the same answer; 0: it closes the connection."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            if status:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_s3_takes_what_a_folder_takes(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, s3)
    storage = Storage("s3://lake/takes%20all")
    storage.check_writable()
    folder = storage.folder("_runs", "r1")
    folder.write_json("a/b.json", {"x": 1})
    assert Storage("s3://lake").folder("takes all").read_json("_runs/r1/a/b.json") == {"x": 1}
    assert storage.folders("_runs") == ["_runs/r1"]
    folder.move_to("a/b.json", storage, "c.json")
    assert storage.files() == ["c.json"]
    storage.delete_file("c.json")


@pytest.mark.parametrize(
    "credentials",
    [READER, (ADMIN[0], "not-the-s3cret"), ("AKIANOBODY", "not-the-s3cret")],
    ids=["reader", "secret", "key"],
)
def test_a_store_that_denies_access_is_not_asked_again(
    s3: str, monkeypatch: pytest.MonkeyPatch, credentials: tuple[str, str]
) -> None:
    use(monkeypatch, s3, credentials)
    with pytest.raises(ConfigurationError, match=r"denies access|its credentials are wrong") as refusal:
        Storage("s3://lake/raw").check_writable()
    assert "credentials" in refusal.value.hint
    assert credentials[1] not in str(refusal.value)


def test_a_bucket_that_does_not_exist_is_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, s3)
    with pytest.raises(ConfigurationError, match=r"there is no such bucket.*nothing-here"):
        Storage("s3://nothing-here/raw").check_writable()


@pytest.mark.long
@pytest.mark.parametrize("status", [503, 0])
def test_an_outage_is_worth_another_try(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with answering(status) as endpoint:
        use(monkeypatch, endpoint)
        with pytest.raises(StorageUnavailable, match="the store failed"):
            Storage("s3://lake/raw").exists("x")


def test_a_denial_without_a_word_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(403) as endpoint:
        use(monkeypatch, endpoint)
        with pytest.raises(StorageRefused, match="denies access"):
            Storage("s3://lake/raw").exists("x")


@pytest.mark.long
def test_an_endpoint_that_is_not_there_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageUnavailable) as failure:
        Storage("s3://lake/raw").check_writable()
    assert "network" in failure.value.hint


@pytest.mark.long
def test_a_region_that_cannot_be_asked_for_may_be_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint, building the store asks AWS for the bucket's region."""
    for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    # Nothing listens on this port, wherever the test runs.
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageUnavailable):
        Storage("s3://cdc-no-such-bucket-anywhere/raw")


def test_a_name_too_long_for_the_disk_is_final(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match="rejects this"):
        Storage(tmp_path.as_uri()).write_json("x" * 300, {})


def test_a_full_disk_may_have_room_later() -> None:
    try:
        Path("/dev/full").write_text("x")
    except OSError as error:
        found = storage_error(error, "file:///lake")
    assert isinstance(found, StorageUnavailable)
    assert "is full" in str(found)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET])
def test_what_is_not_known_to_be_final_may_be_retried(number: int) -> None:
    assert isinstance(storage_error(OSError(number, "whatever"), "file:///lake"), StorageUnavailable)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_disk_that_denies_access_is_final(number: int) -> None:
    assert isinstance(storage_error(OSError(number, "whatever"), "file:///lake"), StorageRefused)
