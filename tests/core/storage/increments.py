"""Concurrent writers of one record."""

from __future__ import annotations

import threading

from airflow_provider_cdc.core.storage.folder import Storage

WRITERS, INCREMENTS = 4, 5


def incremented(folder: Storage) -> int:
    """Let `WRITERS` threads increment a new record `INCREMENTS` times each. Return its final value."""
    assert folder.create_json("n.json", {"n": 0, "by": ""})

    def add(writer: int) -> None:
        for number in range(INCREMENTS):
            while True:
                present = folder.read_versioned("n.json")
                assert present is not None
                if folder.replace_json("n.json", {"n": present[0]["n"] + 1, "by": f"{writer}-{number}"}, present[1]):
                    break

    threads = [threading.Thread(target=add, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(folder.read_json("n.json")["n"])
