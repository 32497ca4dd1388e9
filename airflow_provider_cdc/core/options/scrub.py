"""Options of scrubbing: how often runs read unchanged files of copies again, to find damage."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.options.declare import COUNT_OR_NONE, FOLDED, GIB, option


@dataclass(frozen=True)
class ScrubOptions:
    """How often a run reads unchanged files of the last copies again, and how many of them."""

    scrub_days: int = option(
        7,
        accepts=COUNT_OR_NONE,
        title="Days between checks of a file",
        section=FOLDED,
        help="A copy that is rolled forward takes over unchanged files from the last copy. Within this number of days, "
        "runs read each of these files once, and compare it with its checksum. A damaged file is reported, and its "
        "table is then read in full. 0: unchanged files are not read.",
        example="a number such as 7",
    )
    scrub_gib: float = option(
        0.0,
        accepts=GIB,
        title="GiB to check per run",
        section=FOLDED,
        help="The most GiB of unchanged files that a run reads to check them; the files that have been due the longest "
        "come first. 0: all files that are due.",
        example="a number such as 50",
    )
