"""dbt reads tables at one cut, in an environment of its own: its requirements conflict with those of this checkout.

``dev/dbt.txt`` pins them. To pin anew (dbt-core 1.12 needs a file that no package registry has):

    echo 'dbt-core<1.12 dbt-duckdb duckdb==1.5.5' | tr ' ' '\\n' | uv pip compile - --universal --python-version 3.11 \\
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o dev/dbt.txt
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import airflow_provider_cdc
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.lake import read_cut
from harness.lake_readers import load_statements
from harness.own_environment import make_environment
from tests.interrupting import Interrupted, commits_fail
from tests.sinks.iceberg.runs import run_of
from tests.sinks.test_contract import ORDERS, Lake

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/cuts.md").read_text()
LINES = TableName("shop", "order_lines")
PROFILE = {"shop": {"target": "dev", "outputs": {"dev": {"type": "duckdb", "path": "shop.duckdb"}}}}
PROJECT = {
    "name": "shop",
    "version": "1.0",
    "profile": "shop",
    "models": {"shop": {"+materialized": "table"}},
    "on-run-start": load_statements(),
}


def night(lake: Lake, number: int, customers: int) -> Any:
    """A run in which each customer has one order, with two lines whose amount is the number of the night."""
    ids = list(range(1, customers + 1))
    orders = pa.table({"id": pa.array(ids, pa.int64()), "customer": [f"customer {one}" for one in ids]})
    amounts = pa.array([Decimal(number)] * 2 * customers, pa.decimal128(10, 2))
    lines = pa.table({"order_id": pa.array(ids * 2, pa.int64()), "amount": amounts})
    return run_of(lake, number, {ORDERS: orders, LINES: lines})


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dbt project with the model of the documents, in the working directory; dbt is on PATH."""
    (model,) = re.findall(r"A model, .*?```sql\n(.*?)```", PAGE, re.DOTALL)
    # Not tmp_path: pytest keeps the last three of those, and an environment is large.
    with tempfile.TemporaryDirectory(prefix="cdc-dbt-") as directory:
        folder = Path(directory)
        python = make_environment(folder, "--requirements", ROOT / "dev/dbt.txt")
        for name in ("macros", "models"):
            (folder / name).mkdir()
        shutil.copy(Path(airflow_provider_cdc.__file__).parent / "dbt/cdc_table.sql", folder / "macros")
        (folder / "models/order_totals.sql").write_text(model)
        (folder / "models/lines.sql").write_text("select * from {{ cdc_table('shop.order_lines') }}")
        for name, content in {"dbt_project.yml": PROJECT, "profiles.yml": PROFILE}.items():
            # JSON is YAML.
            (folder / name).write_text(json.dumps(content))
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
        monkeypatch.delenv("PYTHONPATH", raising=False)
        yield folder


def results() -> tuple[list[Any], list[Any]]:
    with duckdb.connect("shop.duckdb", read_only=True) as connection:
        totals = connection.execute("SELECT customer, total FROM order_totals ORDER BY id").fetchall()
        return totals, connection.execute("SELECT DISTINCT amount FROM lines").fetchall()


def dbt(*arguments: str) -> str:
    return subprocess.run(["dbt", *arguments], capture_output=True, text=True, check=False).stdout


@pytest.mark.long
def test_all_models_of_dbt_read_their_tables_at_one_cut(
    lake: Lake, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = re.findall(r"```python\n(import json, subprocess.*?)```", PAGE, re.DOTALL)
    snippet = snippet.replace("/data/lake", lake.storage.path())
    lake.sink.publish(night(lake, 1, customers=2))

    def end_before_lines(commit: Callable[[], Any], table: str) -> Any:
        if table == str(LINES):
            raise Interrupted
        return commit()

    # The tables are torn: orders are of the second night, and their lines of the first one.
    with monkeypatch.context() as patch:
        commits_fail(patch, end_before_lines)
        with pytest.raises(Interrupted):
            lake.sink.publish(night(lake, 2, customers=1))
    exec(snippet, {"read_cut": read_cut})
    assert results() == ([("customer 1", Decimal(2)), ("customer 2", Decimal(2))], [(Decimal(1),)])

    lake.sink.publish(night(lake, 3, customers=3))
    exec(snippet, {"read_cut": read_cut})
    assert results() == ([(f"customer {one}", Decimal(6)) for one in (1, 2, 3)], [(Decimal(3),)])

    # Models are listed without a cut, and never read without one.
    assert "shop.order_totals" in dbt("ls")
    assert "the variable cdc_cut is missing" in dbt("run")
    cut = read_cut(lake.storage.uri)
    assert cut is not None
    only_orders = json.dumps(cut.dbt_vars(["shop.orders"]))
    assert "has no table shop.order_lines, only shop.orders" in dbt("run", "--vars", only_orders)
    assert results()[1] == [(Decimal(3),)]
