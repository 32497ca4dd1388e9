"""The tables of the differences between MySQL servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.sources.mysql.server.dialect import FEATURES, SERVICES, Subject

_CODE = (Subject.STATEMENT, Subject.VARIABLE, Subject.COLUMN, Subject.EVENT, Subject.LOGIN)


def version_table() -> Iterator[Sequence[str]]:
    yield "", "versions", "used to", "without it", "manual"
    for one in FEATURES:
        if one.differs:
            name = f"`{one.name}`" if one.subject in _CODE else one.name
            page = one.manual.rpartition("/")[2].removesuffix(".html")
            yield f"{one.subject.value} {name}", one.versions, one.use, one.instead, f"[{page}]({one.manual})"


def service_table() -> Iterator[Sequence[str]]:
    yield "", "recognized by", "settings are changed", "the log is switched on", "the log is kept by", "not available"
    for one in SERVICES:
        links = ", ".join(f"[{number}]({page})" for number, page in enumerate(one.manual, 1))
        settings = one.settings or "with `SET PERSIST`"
        yield f"{one.name} ({links})", one.recognized, settings, one.log, f"`{one.keep}`", one.missing
