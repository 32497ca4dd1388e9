"""The link to a report is a link that a browser can open, if the lake is readable over HTTP."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_cdc.links.report import ReportLink


@pytest.mark.parametrize(
    ("uri", "link"),
    [
        ("s3://lake/raw/_runs/r/report.html", "https://files.example.com/raw/_runs/r/report.html"),
        ("file:///data/lake/_runs/r/report.html", "https://x.example.com/_runs/r/report.html"),
        ("s3://lake/raw2/_runs/r/report.html", "s3://lake/raw2/_runs/r/report.html"),
        ("", ""),
    ],
)
def test_a_folder_that_the_settings_name_is_shown_by_its_address(
    uri: str, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = "s3://lake/raw/=https://files.example.com/raw file:///data/lake=https://x.example.com/"
    monkeypatch.setenv("AIRFLOW__CDC__REPORT_URLS", pairs)
    assert ReportLink().get_link(SimpleNamespace(report_uri=uri), ti_key=None) == link


def test_without_settings_it_is_the_report_s_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__CDC__REPORT_URLS", raising=False)
    uri = "s3://lake/raw/_runs/r/report.html"
    assert ReportLink().get_link(SimpleNamespace(report_uri=uri), ti_key=None) == uri
