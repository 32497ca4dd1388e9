"""A MySQL server that encrypts its log (``binlog_encryption``), with its own key file."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from harness.mysql_server import MysqlServer

COMPONENT = "component_keyring_file"
_PLUGINS = ("lib/mysql/plugin", "lib64/mysql/plugin", "lib/plugin")


class EncryptedServer(MysqlServer):
    """Skips the test where the installation has no keyring in a file."""

    def _find_binaries(self, version: int | None) -> None:
        super()._find_binaries(version)
        (at,) = (place for place, word in enumerate(self.binaries.mysqld) if Path(word).name == "mysqld")
        program = Path(self.binaries.mysqld[at]).resolve()
        usr = program.parent.parent
        component = next((usr / folder / f"{COMPONENT}.so" for folder in _PLUGINS if (usr / folder).is_dir()), None)
        if component is None or not component.exists():
            pytest.skip(f"the MySQL on this machine has no {COMPONENT}")
        # A file beside the program names the keyring to load, and a file beside the component configures it.
        own, plugins = self.directory / "program", self.directory / "plugins"
        if not own.exists():
            for folder in (own, plugins):
                folder.mkdir(parents=True)
            shutil.copy(program, own)
            shutil.copy(component, plugins)
            keys = {"path": str(self.directory / "keys"), "read_only": False}
            (plugins / f"{COMPONENT}.cnf").write_text(json.dumps(keys))
            (own / "mysqld.my").write_text(json.dumps({"components": f"file://{COMPONENT}"}))
        words = [*self.binaries.mysqld]
        words[at] = str(own / "mysqld")
        self.binaries = dataclasses.replace(self.binaries, mysqld=tuple(words))
        self._options = {"plugin_dir": str(plugins), "binlog_encryption": "ON", **self._options}
