"""`dev/soak`: runs random pieces of work until the time is up, and prints how to repeat those that failed."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from harness.airflow_home import ROOT
from harness.soak.kinds import FIXED, KINDS, command

SIDE_BY_SIDE = 2
MINUTES = 10.0
SEEDS = 1_000_000
"""Seeds are below this number."""

Piece = tuple[str, int]
"""A kind of work, and its seed."""


class Soak:
    """Runs pieces of work. ``failed`` are the pieces that failed."""

    def __init__(self, pieces: Iterable[Piece], minutes: float | None) -> None:
        self._pieces = iter(pieces)
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes
        self._lock = threading.Lock()
        self.failed: list[Piece] = []
        self.done = 0

    def run(self) -> None:
        """Run the pieces until there are no more, or until the time is up."""
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for future in [pool.submit(self._work) for _ in range(SIDE_BY_SIDE)]:
                future.result()

    def _work(self) -> None:
        while (piece := self._next()) is not None:
            began = time.monotonic()
            code, output = _run(piece)
            with self._lock:
                self._print_result(piece, code, output, time.monotonic() - began)

    def _next(self) -> Piece | None:
        with self._lock:
            if self._ends is not None and time.monotonic() >= self._ends:
                return None
            return next(self._pieces, None)

    def _print_result(self, piece: Piece, code: int, output: str, seconds: float) -> None:
        name, seed = piece
        self.done += 1
        last = output.strip().rpartition("\n")[2]
        if code == 0:
            print(f"soak: {name}, seed {seed}: {last}", flush=True)
            return
        self.failed.append(piece)
        print(output)
        print(f"soak: {name}, seed {seed}: FAILED after {seconds:.0f} s (pytest: {code})")
        print(f"soak: repeat it with: {_repeating(piece)}", flush=True)


def _run(piece: Piece) -> tuple[int, str]:
    """Run a piece, and return the exit status and the output of pytest."""
    arguments, environment = command(*piece)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _repeating(piece: Piece) -> str:
    name, seed = piece
    return f"dev/soak --only {name} --seed {seed}"


def drawn(seed: int, only: str | None) -> Iterator[Piece]:
    """Yield an endless sequence of pieces of work, which the seed determines."""
    chance = random.Random(seed)
    names = [only] if only else list(KINDS)
    weights = [KINDS[name].weight for name in names]
    while True:
        (name,) = chance.choices(names, weights)
        yield name, chance.randrange(SEEDS)


def fixed_part(part: str) -> tuple[Piece, ...]:
    """Return the fixed pieces of a part such as ``2/4``. Each piece belongs to one part."""
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(part)
    return FIXED[number - 1 :: parts]


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/soak", allow_abbrev=False)
    parser.add_argument("minutes", nargs="?", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", choices=list(KINDS), metavar="NAME")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--part", type=fixed_part, default=FIXED, metavar="K/N")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name:<20} {kind.what}" for name, kind in KINDS.items()))
        return
    pieces: Iterable[Piece] = asked.part
    minutes = None
    if not asked.fixed:
        if asked.only and asked.seed is not None and asked.minutes is None:
            pieces = [(asked.only, asked.seed)]
        else:
            seed = random.SystemRandom().randrange(SEEDS) if asked.seed is None else asked.seed
            minutes = MINUTES if asked.minutes is None else asked.minutes
            print(f"soak: {minutes:g} minutes; --seed {seed} draws the same pieces of work again", flush=True)
            pieces = drawn(seed, asked.only)
    soak = Soak(pieces, minutes)
    soak.run()
    for piece in soak.failed:
        print(f"soak: FAILED: {_repeating(piece)}")
    print(f"soak: pieces of work: {soak.done}, failed: {len(soak.failed)}", flush=True)
    sys.exit(bool(soak.failed))


if __name__ == "__main__":
    main()
