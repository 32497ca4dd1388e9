"""The log of a verification."""

from airflow_provider_cdc.jobs.verify.request import DIFFERENT, Difference, TableResult, VerifyResult
from airflow_provider_cdc.jobs.verify.step import lines


def test_the_log_of_a_task_has_keys_but_no_rows() -> None:
    """The whole row of a table without a key is its key."""
    keyed = Difference("changed", {"id": "7"}, ({"id": "7", "a": "secret"},), ({"id": "7", "a": None},), (1, 1), ("a",))
    row: dict[str, str | None] = {"id": "8", "a": "secret"}
    keyless = Difference("missing", row, (row,), (), (1, 0))
    tables = (
        TableResult("s.t", DIFFERENT, differences=(keyed,)),
        TableResult("s.u", DIFFERENT, differences=(keyless,)),
    )
    result = VerifyResult("v", "source", "2026-01-01T00:00:00+00:00", tables)
    log, shown = ("\n".join(lines(result, with_rows=with_rows)) for with_rows in (False, True))
    assert "id = 7" in log
    assert "secret" not in log
    assert shown.count("secret") == 3
