"""A headless Chromium: installed on this machine, or fetched without root, as the database servers are."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.messages import say

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGES = (("chromium-headless-shell", "fonts-dejavu-core"), ("chromium", "fonts-dejavu-core"))
HINT = "install Chromium so that chromium is on PATH"
_OF_THE_SYSTEM = (
    *("ld-linux*", "libc.so*", "libm.so*", "libmvec.so*", "libpthread*", "libdl.so*", "librt.so*", "libresolv.so*"),
    *("libutil.so*", "libnsl.so*", "libnss_*", "libanl.so*"),
)
"""The files of the C library. The system's C library is used, because the loader is the system's."""


_FONTS = """<?xml version="1.0"?>
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{root}/font-cache</cachedir>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


@dataclass(frozen=True)
class Chromium:
    """A Chromium: ``binary``, to be run with these environment variables."""

    binary: Path
    environment: dict[str, str]

    def version(self) -> str:
        """Return the version that Chromium prints.

        :raises HarnessError: Chromium does not run.
        """
        try:
            done = subprocess.run(
                [self.binary, "--version"],
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            raise HarnessError(f"{self.binary} does not run: {told}\nInstead: {HINT}") from error
        return done.stdout.strip()


def find_chromium() -> Chromium:
    """Return the Chromium on PATH, otherwise the one in the cache, which is fetched at first use.

    :raises HarnessError: there is no Chromium, and it cannot be fetched.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found), {})
    root = cache_directory() / "chromium" / "root"
    with locked("chromium"):
        if not root.exists():
            say("Chromium: none on PATH; fetching one into the cache (about 150 MB), without root")
            with building(root) as work:
                # Use this machine's own suite, so that Chromium runs with this machine's C library.
                apt.unpack(PACKAGES, work, suites=apt.own_suites(), with_dependencies=True, hint=HINT)
                for pattern in _OF_THE_SYSTEM:
                    for folder in _libraries(work):
                        for file in folder.glob(pattern):
                            file.unlink()
                _unpacked(work).version()
            say(f"Chromium: unpacked in {root} (undo: rm -r {root.parent})")
    return _unpacked(root)


def _unpacked(root: Path) -> Chromium:
    places = (
        "usr/lib/chromium/chromium-headless-shell",
        "usr/lib/chromium/chromium",
        "usr/bin/chromium-headless-shell",
    )
    binary = next((root / place for place in places if (root / place).exists()), None)
    if binary is None:
        raise HarnessError(f"{root} has no Chromium: delete this folder and try again, or {HINT}")
    fonts, wanted = root / "fonts.conf", _FONTS.format(root=root)
    # Write the file again, because Chromium was unpacked under another path.
    if not fonts.exists() or fonts.read_text() != wanted:
        fonts.write_text(wanted)
    libraries = [*_libraries(root), binary.parent]
    return Chromium(binary, {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "FONTCONFIG_FILE": str(fonts)})


def _libraries(root: Path) -> list[Path]:
    found = [path for parent in ("usr/lib", "lib") for path in sorted((root / parent).glob("*-linux-gnu*"))]
    # Some libraries are in a subfolder that is not on the default search path.
    return [*found, *(own for path in found for own in [path / "pulseaudio"] if own.is_dir())]
