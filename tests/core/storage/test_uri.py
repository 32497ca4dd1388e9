"""A target is parsed once, joined by its parts, and never shows anything that could be a secret."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri, glob, redacted
from airflow_provider_cdc.errors import ConfigurationError

SECRET = "s3cr3t-h0rse"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://lake/raw?region=eu-west-1",
        "s3://lake/raw?",
        "file:///lake?x=y",
        "s3://lake/raw#today",
        "file:///lake#",
        "s3://key@lake/raw",
        "s3://@lake/raw",
        "hdfs://hadoop@name/lake",
        "gs://somebody@lake/raw",
        "s3://anonymous@lake/raw",
        "file://host/lake",
        "file://localhost/lake",
        "file://C:/lake",
        "C:\\lake",
        "\\\\server\\lake",
        "s3://lake:9000/raw",
        "s3:///raw",
        "s3a://lake/raw",
        "S3://lake/raw",
        "mock:///lake",
        "s3://lake/raw/../other",
        "s3://lake/raw/%2E%2e/other",
        "/lake/./raw",
        "s3://lake//raw",
        "s3://lake/raw%2Fother",
        "s3://lake/raw%00",
        "s3://lake/my raw",
        "s3://lake/é",
        "s3://lake/100%",
        "file:///a\nb",
        "/a\tb",
        "/a\u0085b",
        '/a"b',
        "/a\udce9",
        "file:///a%09b",
        "s3://lake/a%22b",
        " s3://lake/raw",
        "/lake/raw ",
        "/lake/raw\n",
        "s3://lake\n",
    ],
)
def test_what_could_land_elsewhere_than_it_reads_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used as a folder"):
        Storage(uri)


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("/data/lake///", "/data/lake"),
        ("/data//lake", "/data/lake"),
        ("/data/C#/what?", "/data/C#/what?"),
        ("/", "/"),
        ("file:///", "file:///"),
        ("file:///data//lake/", "file:///data/lake"),
        ("file:///my%20lake/%C3%A9", "file:///my%20lake/%C3%A9"),
        ("s3://lake", "s3://lake"),
        ("s3://lake/", "s3://lake"),
        ("s3://lake/year=2026/a@b:c/", "s3://lake/year=2026/a@b:c"),
        ("gs://anonymous@lake/raw", "gs://anonymous@lake/raw"),
        ("abfss://container@account.dfs.core.windows.net/raw", "abfss://container@account.dfs.core.windows.net/raw"),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake"),
        ("viewfs:///lake", "viewfs:///lake"),
    ],
)
def test_what_names_one_place_is_taken_and_has_one_spelling(uri: str, normal: str) -> None:
    assert str(LakeUri.parse(uri)) == normal
    assert redacted(uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "/",
        "/data/my lake?/100%",
        "file:///",
        "file:///my%20lake/%C3%A9%25",
        "gs://anonymous@lake/raw%20x",
        "abfss://container@account.dfs.core.windows.net/raw%20x",
        "abfs://account.blob.core.windows.net/container/raw",
    ],
)
def test_folders_are_where_pyarrow_says_that_their_uri_is(uri: str) -> None:
    folder = Storage(uri).folder("_runs", "é 1%+")
    assert fs.FileSystem.from_uri(folder.uri)[1] == folder.path() == Storage(folder.uri).path()
    assert fs.FileSystem.from_uri(folder.uri_of("a/b.json"))[1] == folder.path("a/b.json")
    assert folder.parent().parent().path() == Storage(uri).path()
    assert folder.parent().parent().uri == Storage(uri).uri


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://key:{SECRET}@lake/raw",
        f"s3://key:{SECRET}/more@lake/raw",
        f"s3://key:{SECRET}@more@lake/raw",
        f"s3://key:{SECRET}",
        f"s3://key:{SECRET}%40lake/raw",
        f"s3://{SECRET}%40lake/raw",
        f"s3://:{SECRET}@lake/raw",
        f"s3://lake/raw?secret_key={SECRET}&region=eu-west-1",
        f"s3://lake/raw#{SECRET}",
        f"s3://lake/a b?secret_key={SECRET}",
        f"s3a://key:{SECRET}@lake/raw",
        f"s3:/key:{SECRET}@lake/raw",
        f"key:{SECRET}@lake/raw",
        f"lake/raw?token={SECRET}",
        f"hdfs://user:{SECRET}@name/lake",
        f"gs://anonymous:{SECRET}@lake/raw",
        f"abfs://:{SECRET}@account.blob.core.windows.net/container",
        f"abfss://container:{SECRET}@account.dfs.core.windows.net/raw",
        f"abfss://container@account.dfs.core.windows.net/raw?sv=2024&sig={SECRET}",
        f"https://account.blob.core.windows.net/container?sv=2024&sig={SECRET}",
        f"file://user:{SECRET}@host/lake",
        f"S3://K:{SECRET}@lake\n/x",
    ],
)
def test_a_secret_in_a_bad_uri_is_refused_and_never_printed(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used as a folder") as refusal:
        Storage(uri)
    error: BaseException | None = refusal.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.__dict__}"
        error = error.__cause__ or error.__context__
    assert SECRET not in redacted(uri)
    with pytest.raises(ConfigurationError):
        Storage(redacted(uri))
    assert redacted(redacted(uri)) == redacted(uri)


@given(st.text(st.sampled_from(":/@?#%.*a1é \\[]"), max_size=12).map(lambda text: f"s3://{text}"))
def test_any_text_is_taken_as_it_stands_or_refused_without_what_it_hides(uri: str) -> None:
    try:
        found = LakeUri.parse(uri)
    except ConfigurationError:
        with pytest.raises(ConfigurationError):
            LakeUri.parse(redacted(uri))
        return
    assert redacted(uri) == uri
    assert LakeUri.parse(str(found)) == found
    assert LakeUri.parse(str(found.joined("a", "b"))).parent().parent() == found


@pytest.mark.parametrize(
    ("uri", "pattern", "matches"),
    [
        ("s3://lake/raw", "s3://lake/raw", True),
        ("s3://lake/raw/x", "s3://lake/raw/", True),
        ("s3://lake/raw2", "s3://lake/raw", False),
        ("s3://lake/raw2", "s3://lake/raw*", True),
        ("s3://lake", "s3://lake/raw", False),
        ("s3://lake/raw", "s3://lake", True),
        ("s3://lake2/raw", "s3://lake", False),
        ("s3://lake-7/x/raw", "s3://lake-*/*/raw", True),
        ("s3://lake/a/b/raw", "s3://lake/*/raw", False),
        ("gs://lake/raw", "s3://lake", False),
        ("file:///my%20lake", "/my lake", True),
        ("/data/lake", "file:///data", True),
        ("s3://lake/%72aw", "s3://lake/raw", True),
        ("abfss://c@account/x", "abfss://c@account", True),
        ("s3://any/thing", "*", True),
    ],
)
def test_a_folder_is_below_another_by_its_parts_not_by_its_text(uri: str, pattern: str, matches: bool) -> None:
    assert LakeUri.parse(uri).matches(pattern) is matches


def test_a_pattern_of_stars_takes_no_time() -> None:
    started = time.monotonic()
    assert not glob("*a" * 200 + "b", "a" * 20_000)
    assert time.monotonic() - started < 60
    assert glob("a*b*c", "a-b-b-c")
    assert not glob("ab*ba", "aba")
