"""The effect of copies on writers: what `bench source-impact` and `bench postgres-source-impact` share."""

from __future__ import annotations

import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from harness.bench.contender import Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.traffic import Span, Traffic
from harness.messages import say

SETTLE_SECONDS = 1.0


class Watch(Protocol):
    """Watches the server while the block runs."""

    longest_transaction: float
    """The seconds of the copier's longest transaction in the block."""
    held_back: int
    """How much the server could not clean up because of the oldest transaction, at most; see `Observer.held_back`."""

    def __enter__(self) -> Watch: ...

    def __exit__(self, *raised: Any) -> None: ...


class Observer(Protocol):
    """Observes one kind of server."""

    held_back: str
    """The heading for `Watch.held_back`."""

    @abstractmethod
    def watch(self) -> Watch: ...


@dataclass(frozen=True)
class Impact:
    """The effect of one copy on the source. ``longest_transaction`` is in seconds, ``cpu_seconds`` are those of the
    copy's own processes."""

    span: Span
    longest_transaction: float = 0.0
    held_back: int = 0
    lock_seconds: float = 0.0
    peak_rss_mb: float = 0.0
    cpu_seconds: float = 0.0


def measure(
    observer: Observer,
    traffic: Traffic,
    phases: Sequence[tuple[str, Contender, Order]],
    alone_seconds: float,
) -> dict[str, Impact]:
    """Measure the writers alone, during each copy, and alone again. A phase has a name, a contender and its order."""
    impacts = {"alone": _observe(observer, traffic, partial(_pause, alone_seconds))}
    for name, contender, order in phases:
        say(f"bench: writers and {name}")
        impacts[name] = _observe(observer, traffic, partial(_copy, contender, order))
    impacts["alone_again"] = _observe(observer, traffic, partial(_pause, alone_seconds))
    return impacts


def fill(report: Report, impacts: Mapping[str, Impact], observer: Observer, peers: Sequence[str]) -> None:
    """Add the results to ``report``, and print them. Phases whose names end with ``locked`` hold a lock throughout."""
    alone = (impacts["alone"].span.per_second + impacts["alone_again"].span.per_second) / 2
    lines = []
    for name, impact in impacts.items():
        span = impact.span
        report.results.append(Result(f"writers_{name}", span.commits, span.seconds, impact.peak_rss_mb))
        copying = not name.startswith("alone")
        locked = span.seconds if name.endswith("locked") else impact.lock_seconds
        lines.append(
            [
                f"writers, {name}",
                f"{span.seconds:.2f}",
                f"{span.per_second:,.0f}",
                f"{span.per_second / alone:.0%}",
                f"{span.worst_seconds * 1000:,.0f}",
                f"{impact.longest_transaction * 1000:,.0f}" if copying else "",
                f"{impact.held_back:,}",
                f"{locked * 1000:,.0f}" if copying else "",
                f"{impact.cpu_seconds:.1f}" if copying else "",
            ]
        )
    for name in peers:
        report.ratios[f"vs_{name}"] = impacts["ours"].span.per_second / max(impacts[name].span.per_second, 1e-9)
    report.ratios["vs_alone_governed"] = impacts["ours_governed"].span.per_second / max(alone, 1e-9)
    rows = report.rows
    print(f"\nbench: a copy of {rows:,} rows while four writers commit; ours: the whole run, preflight to publishing\n")
    header = ["", "seconds", "commits/s", "of alone", "worst commit ms", "longest trx ms", observer.held_back]
    print_table([*header, "lock ms", "cpu s"], lines)
    print_ratios(report.ratios)
    print("(ratios of the writers' commits per second while the copy is made)")


def _pause(seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    return {}


def _copy(contender: Contender, order: Order) -> dict[str, Any]:
    try:
        return contender.run(order)
    finally:
        shutil.rmtree(order.target, ignore_errors=True)


def _observe(observer: Observer, traffic: Traffic, work: Callable[[], dict[str, Any]]) -> Impact:
    time.sleep(SETTLE_SECONDS)
    with observer.watch() as watch:
        traffic.begin()
        copied = work()
        span = traffic.span()
    return Impact(
        span,
        watch.longest_transaction,
        watch.held_back,
        copied.get("lock_seconds", 0.0),
        copied.get("peak_rss_mb", 0.0),
        copied.get("cpu_seconds", 0.0),
    )
