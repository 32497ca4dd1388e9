"""Unpacks Debian or Ubuntu packages without root and without changes to the system.

apt resolves and downloads the packages in a private root, which has its own lists, archives and source list, and an
empty status file, so that every dependency is fetched. `dpkg -x` unpacks them. apt checks the signatures against the
keys of this machine. The mirrors are those of this machine's apt configuration.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.messages import say

ROLLING = {"debian": "sid", "ubuntu": "devel"}
KEYRINGS = ("debian-archive-keyring", "ubuntu-archive-keyring")


@dataclass(frozen=True)
class Suite:
    """One `deb` line."""

    site: str
    release: str
    component: str

    def line(self) -> str:
        for name in KEYRINGS:
            for keyring in Path("/usr/share/keyrings").glob(f"{name}.[gp][pg][gp]"):
                if name.startswith(_distribution()):
                    return f"deb [signed-by={keyring}] {self.site} {self.release} {self.component}"
        return f"deb {self.site} {self.release} {self.component}"


def own_suites() -> list[Suite]:
    """Return the suites of this machine's apt configuration; empty if there is no apt."""
    if shutil.which("apt-get") is None:
        return []
    form = "$(SITE)|$(RELEASE)|$(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = (line.split("|") for line in dict.fromkeys(shown.splitlines()))
    return [Suite(*fields) for fields in found if len(fields) == 3 and all(fields)]


def newest_suites() -> list[Suite]:
    """Return the distribution's rolling suite, at the mirror of this machine's base suite."""
    rolling = ROLLING.get(_distribution())
    return _at_the_mirror(rolling) if rolling else []


def suites_of_debian(*releases: str) -> list[Suite]:
    """Return releases of Debian, at the mirror of this machine's base suite; empty if this machine is no Debian."""
    return _at_the_mirror(*releases) if _distribution() == "debian" else []


def _at_the_mirror(*releases: str) -> list[Suite]:
    base = next((s for s in own_suites() if s.component == "main" and "-" not in s.release), None)
    return [Suite(base.site, release, "main") for release in releases] if base else []


def unpack(
    choices: Iterable[Sequence[str]],
    destination: Path,
    *,
    suites: Sequence[Suite],
    with_dependencies: bool,
    hint: str,
    newest_of: Sequence[str] = (),
) -> None:
    """Unpack the first of `choices` (each a list of packages) that `suites` have into `destination`.

    Packages that are built from the sources `newest_of` come from the suite with the newest version, whichever it is.
    By default, apt takes a package from the suite `experimental` only if no other suite has it.
    `hint` is the alternative for the user; every HarnessError ends with it.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise HarnessError(f"cannot fetch packages: {program} is not installed. Instead: {hint}")
    if not suites:
        raise HarnessError(f"cannot fetch packages: this machine's apt configuration has no mirror. Instead: {hint}")
    with tempfile.TemporaryDirectory(prefix="cdc-apt-") as scratch:
        root = _PrivateRoot(Path(scratch), suites, newest_of)
        if failure := root.update():
            raise HarnessError(f"apt-get update failed:\n{failure}\nInstead: {hint}")
        failures = []
        for packages in choices:
            if failure := root.download(packages, with_dependencies=with_dependencies):
                failures.append(f"{' '.join(packages)}: {failure}")
                continue
            for archive in sorted(root.archives.glob("*.deb")):
                subprocess.run(["dpkg", "-x", archive, destination], check=True, stdin=subprocess.DEVNULL)
            _make_links_relative(destination)
            return
    raise HarnessError("apt has none of these packages:\n" + "\n".join(failures) + f"\nInstead: {hint}")


class _PrivateRoot:
    def __init__(self, root: Path, suites: Sequence[Suite], newest_of: Sequence[str]) -> None:
        self.archives = root / "cache/archives"
        for name in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/apt.conf.d"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        (root / "etc/sources.list").write_text("".join(f"{suite.line()}\n" for suite in suites))
        pins = (f"Package: src:{source}\nPin: version *\nPin-Priority: 990\n" for source in newest_of)
        (root / "etc/preferences.d/newest").write_text("\n".join(pins))
        (root / "apt.conf").write_text(
            f'Dir::State "{root}/state";\n'
            f'Dir::State::status "{root}/status";\n'
            f'Dir::Cache "{root}/cache";\n'
            f'Dir::Etc::sourcelist "{root}/etc/sources.list";\n'
            'Dir::Etc::sourceparts "-";\n'
            f'Dir::Etc::preferencesparts "{root}/etc/preferences.d";\n'
            'Dir::Etc::preferences "-";\n'
            f'APT::Sandbox::User "{getpass.getuser()}";\n'
            'APT::Install-Recommends "false";\n'
            'APT::Get::Assume-Yes "true";\n'
        )
        self._environment = {**os.environ, "APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C"}
        self._flags: list[str] = []

    def update(self) -> str | None:
        """Fetch the package lists. Return the error, if there is one."""
        failure = self._apt("update", "--error-on=any")
        if failure and "is expired" in failure:
            # The mirror is a dated snapshot: signed, but past the date in its Release file.
            say("apt: the mirror's Release file has expired; retrying without the check of its date")
            say("apt: (signatures are still checked)")
            self._flags = ["-o", "Acquire::Check-Valid-Until=false"]
            failure = self._apt("update", "--error-on=any")
        return failure

    def download(self, packages: Sequence[str], *, with_dependencies: bool) -> str | None:
        """Download to `archives`. Return the error, if there is one."""
        if with_dependencies:
            return self._apt("install", "--download-only", *packages)
        return self._apt("download", *packages)

    def _apt(self, *arguments: str) -> str | None:
        done = subprocess.run(
            ["apt-get", "-q", *self._flags, *arguments],
            cwd=self.archives,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return None
        return "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])


def _distribution() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    names = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    return next((name for raw in names if (name := raw.strip('"')) in ROLLING), "")


def _make_links_relative(root: Path) -> None:
    """Make absolute links of the packages relative, because their targets are below `root` here."""
    for link in root.rglob("*"):
        if link.is_symlink() and (target := link.readlink()).is_absolute():
            inside = root / target.relative_to("/")
            link.unlink()
            link.symlink_to(os.path.relpath(inside, link.parent))
