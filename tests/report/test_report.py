"""The report shows the contents of the records, and no table name can inject markup."""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.control import acts
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.run.manifest import FeedGap, MissedPast, RunTable
from airflow_provider_cdc.core.run.results import TableRead
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.timeline import Bar, write_timeline
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import LogGone, ManifestError, RunStopped
from airflow_provider_cdc.report.facts import SLOWEST, DagRunName, Report, Section, snippets_of
from airflow_provider_cdc.report.page import to_html, write_failure, write_report
from tests.runs import consolidate_result, delta_result, manifest_of, publish, snapshot_result

ODD = TableName("shop", "<script>alert('1')</script>|`a`\n*b*")
POSITION = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
ONE = RunTable(Table(ODD, (Column("id", "int", False),), ("id",)), "watermark", "its key tells")
DAG_RUN = DagRunName("shop_<to>_lake", "manual__2026-01-01")


def published(tmp_path: Path) -> Run:
    missed = MissedPast("2026-01-01T00:00:00+00:00", "altered since")
    more: dict[str, Any] = {"tables": (ONE,), "missed_past": missed}
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION, **more))
    name = str(ODD)
    write_timeline(run.folder, [Bar(name, n, f"host-{n % 2}:1", 1e9 + n, 1.5 + n, 100, 2**20) for n in range(12)])
    run.finish_step("snapshot", snapshot_result(1234, tables={name: TableRead(1234, 3, 2, 2**20)}, seconds=2.0))
    run.finish_step("extract_delta", delta_result(7))
    publish(
        run,
        consolidate_result(
            published={name: "file:///x"},
            rows={name: 1234},
            rewound={name: 5},
            nulled={name: {"<b>": 3}},
            skipped={"shop.stray": "its engine <MyISAM>"},
            feed_gaps={name: FeedGap("before", "here", "ALTER TABLE <b>")},
        ),
    )
    return Run.load(run.folder)


class Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick", "onload"}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_tells_what_was_found_and_takes_no_name_for_markup(tmp_path: Path) -> None:
    run = published(tmp_path)
    assert write_report(run, DAG_RUN) == run.folder.uri_of("report.html")
    page = (tmp_path / "_runs" / run.run_id / "report.html").read_text()
    seen = Seen(page)
    assert seen.tags == {
        *"html head meta title style body h1 h2 h3 div table thead tbody tr th td p pre br svg rect text".split()
    }
    text = "".join(seen.text)
    for told in (
        str(ODD),
        POSITION,
        "1,234",
        "617 rows/s",
        "7 transactions",
        "its engine <MyISAM>",
        "<b>",
        "file:///x",
        "2026-01-01T00:00:00+00:00",
        "the present was copied: altered since",
        "12 parts, read by 2 workers",
        "part 11: 12.5 s, 100 rows, 1.0 MiB, by host-1:1",
        "shop_<to>_lake",
        "manual__2026-01-01",
        "from the recording of the position to the publication",
    ):
        assert told in text, told
    assert 'name="viewport"' in page


def test_markdown_has_a_line_for_each_row_whatever_the_names(tmp_path: Path) -> None:
    run = published(tmp_path)
    write_report(run, DAG_RUN)
    text = (tmp_path / "_runs" / run.run_id / "report.md").read_text()
    (line,) = (line for line in text.partition("## Timeline")[0].splitlines() if re.match(r"\|.*script", line))
    assert len(re.findall(r"(?<!\\)\|", line)) == 9
    assert "\\<script\\>" in line
    assert "\\`a\\` \\*b\\*" in line
    assert "    rows = open_dataset(read_latest(" in text
    assert "| 0 kept as written |\n\nThe time to start Spark is not included.\n\n## Timeline\n\n|" in text.replace(
        "0 files rewritten, ", ""
    )


def test_a_run_that_is_not_published_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        write_report(Run.create(manifest_of(Storage(tmp_path.as_uri()))), DAG_RUN)
    assert not list(tmp_path.rglob("report*"))


def test_the_slowest_parts_come_first_and_only_some_of_them(tmp_path: Path) -> None:
    run = published(tmp_path)
    write_report(run, DAG_RUN)
    text = (tmp_path / "_runs" / run.run_id / "report.md").read_text().partition("## Timeline")[2].partition("## ")[0]
    seconds = [float(line.split(" | ")[2].replace("\\", "")) for line in text.splitlines() if "host" in line]
    assert seconds == [12.5 - n for n in range(SLOWEST)]


def test_a_phone_needs_no_wide_table(tmp_path: Path) -> None:
    run = published(tmp_path)
    write_report(run, DAG_RUN)
    page = (tmp_path / "_runs" / run.run_id / "report.html").read_text()
    assert "@media (max-width:" in page
    # A cell that stands alone says what it is.
    assert 'data-label="keys put back">5</td>' in page


def test_one_of_a_thing_is_told_as_one(tmp_path: Path) -> None:
    run, name = Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION, tables=(ONE,))), str(ODD)
    write_timeline(run.folder, [Bar(name, 0, "host-0:1", 1e9, 1.5, 1, 2**20)])
    run.finish_step("snapshot", snapshot_result(1, tables={name: TableRead(1, 1, 1, 2**20)}, seconds=2.0))
    run.finish_step("extract_delta", delta_result(1))
    publish(run, consolidate_result(published={name: "file:///x"}, rows={name: 1}))
    uri = write_report(Run.load(run.folder), DAG_RUN)
    text = "".join(Seen(Path(uri.removeprefix("file://")).read_text()).text)
    assert f"Copy of 1 table, run {run.run_id}" in text
    for told in ("1 row, ", "1 transaction, ", "1 part, read by 1 worker."):
        assert told in text, told
    assert not re.search(r"(?<![\d,.])1 (tables|rows|transactions|row images|segments|files|parts|workers)", text)


def test_a_run_that_failed_tells_why_and_how_far_it_came(tmp_path: Path) -> None:
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION, tables=(ONE,)))
    run.finish_step("snapshot", snapshot_result(1234, seconds=2.0))
    error = LogGone("it was <purged>", where="binlog.000001", hint="keep it for longer")
    uri = write_failure(run, DAG_RUN, "extract_delta", error)
    assert uri == run.folder.uri_of("report.html")
    text = "".join(Seen((tmp_path / "_runs" / run.run_id / "report.html").read_text()).text)
    for told in (
        "extract_delta failed",
        "LogGone",
        "binlog.000001: it was <purged>",
        "keep it for longer",
        "Nothing of this run is published",
        "manual__2026-01-01",
        "from the recording of the position to the failure",
        POSITION,
        str(ODD),
        "1,234 rows",
    ):
        assert told in text, told
    assert "published at" not in text


def _timeline_of(*bars: Bar) -> str:
    return to_html(Report("", (Section("Timeline", ("",), (), bars=bars),)))


def test_a_picture_of_very_many_parts_stays_small() -> None:
    picture = _timeline_of(*(Bar("shop.t", n, f"host:{n % 4}", 1e9 + n * 0.01, 0.009, 10, 100) for n in range(50_000)))
    assert len(picture) < 2_000_000
    assert picture.count("<rect") < 12_000
    assert "<svg" not in _timeline_of()


def test_a_legend_names_the_tables_and_no_bar_looks_like_a_failure() -> None:
    tables = [f"shop.<t{n}>" for n in range(14)]
    picture = _timeline_of(*(Bar(table, 0, "host:1", 1e9 + n, 0.9, 1, 1) for n, table in enumerate(tables)))
    assert "</svg> shop.&lt;t0&gt; " in picture
    hues = {int(hue) for hue in re.findall(r"hsl\((\d+) ", picture)}
    assert len(hues) == 12
    assert not [hue for hue in hues if hue < 30 or hue > 330]


def test_the_time_that_a_run_took_ends_with_its_publication(tmp_path: Path) -> None:
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), created_at="2026-01-01T23:59:00+00:00", tables=(ONE,)))
    run.finish_step("snapshot", snapshot_result(1))
    run.finish_step("extract_delta", delta_result(1))
    published_at = "2026-01-02T01:10:00+00:00"
    publish(run, consolidate_result(published={str(ODD): "/x"}, rows={str(ODD): 1}, published_at=published_at))
    write_report(Run.load(run.folder), DAG_RUN)
    assert "1 h 11 min, from" in (tmp_path / "_runs" / run.run_id / "report.html").read_text()


@pytest.mark.parametrize("lake", ["file:///data/*", "/data/{a}", "/data/a%20b"])
def test_no_snippet_names_a_path_that_means_another_one(lake: str) -> None:
    (snippet,) = snippets_of(Table(ODD, (), ()), lake, f"{lake}/shop.orders/snapshot=1")
    assert "read_latest" in snippet.code
    assert len(snippet.code.splitlines()) == 3, "no line break of a name is one of the code"


def test_a_part_of_a_table_is_read_by_what_it_is_a_part_by() -> None:
    selection = selection_of("status = 'open'", ["id", "note"])
    table = Table(TableName("shop", "orders"), (), (), selection=selection)
    code = next(snippets_of(table, "s3://lake", "s3://lake/shop.orders/snapshot=1")).code
    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and node.keywords]
    assert [ast.literal_eval(argument) for argument in call.args] == ["s3://lake", "shop.orders"]
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert selection_of(given["where"], given["columns"]) == selection


def test_acts_of_operators_and_of_the_governor_are_in_the_report_of_a_run_that_is_published_or_failed(
    tmp_path: Path,
) -> None:
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION, tables=(ONE,)))
    act_on(run.folder, "pause", "<ann>", "a sale")
    held = acts.Event("2999-01-01T00:00:00+00:00", "snapshot", "held by the governor", "x is 7, above 5")
    acts.write(run.folder, "snapshot", "t", acts.ControlLog((held,), 60.0, 7.0))
    uri = write_failure(run, DAG_RUN, "snapshot", RunStopped("stopped"))
    page = Seen(Path(uri.removeprefix("file://")).read_text()).text
    text = " ".join(page)
    assert text.index("by <ann>: a sale") < text.index("held by the governor")
    assert "The governor slowed or paused it for 7 s." in text
