"""Writes the records of a run as format 5 had them, which had no ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_format_5(folder: Path, *, without: tuple[str, ...] = (), number: int = 1, **changes: Any) -> None:
    """Replace the ledger of the run in ``folder`` by the records of format 5.

    :param without: the records that are left out.
    :param number: the number of the manifest: 2 for a run that moved once.
    :param changes: fields of the manifest with other values.
    """
    entries = {}
    for path in sorted((folder / "ledger").iterdir()):
        entry = json.loads(path.read_text())
        entries[entry["kind"]] = entry
        path.unlink()
    (folder / "ledger").rmdir()
    (folder / "published.json").unlink(missing_ok=True)
    manifest = entries[max(entries.keys() & {"Begun", "Moved"})]["entry"]["manifest"] | {"format": 5} | changes
    if number > 1:
        _write(folder / "manifest.json", {**manifest, "initial_position": "earlier"})
    _write(folder / ("manifest.json" if number == 1 else f"manifest-{number}.json"), manifest)
    steps = folder / "steps" / digest(manifest)[:16]
    grounds = {"manifest": digest(manifest)}
    names = {
        "ReadsEnded": "snapshot",
        "Extracted": "extract_delta",
        "FilesCommitted": "commit",
        "CopiesPublished": "consolidate",
    }
    for kind, name in names.items():
        if kind not in entries or name in without:
            continue
        record: dict[str, Any] = {"token": entries[kind]["token"], "rests_on": dict(grounds)}
        if name == "commit":
            record |= {"record": entries[kind]["entry"]["record"], "abandoned": False}
        else:
            record |= {"task_id": name, "found": entries[kind]["entry"]["result"]}
        _write(steps / f"{name}.json", record)
        if name != "commit":
            grounds[name] = digest(record)


def digest(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False))
