"""Reads YAML and keeps the line and the key of every value, so that error messages can name the place of an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_cdc.errors import ConfigurationError, Problem


@dataclass(frozen=True)
class YamlPlace:
    """The place of a value: the file, the line (from 1), and the keys that lead to the value."""

    file: str
    line: int
    keys: str = ""

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}"
        return f"{place}, key {self.keys}" if self.keys else place

    def problem(self, what: str, hint: str) -> Problem:
        return Problem(str(self), what, hint)


@dataclass(frozen=True)
class YamlValue:
    """A value in the file. ``plain`` is the value as a Python object, without places."""

    place: YamlPlace
    plain: Any
    node: yaml.Node

    def mapping(self, problems: list[Problem]) -> dict[str, YamlValue]:
        """Return the keys and values of a mapping. Add errors to ``problems``."""
        if not isinstance(self.node, yaml.MappingNode):
            problems.append(self.place.problem("the value is not a mapping", "write it as lines of `key: value`"))
            return {}
        values: dict[str, YamlValue] = {}
        for key, node in self.node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            keys = f"{self.place.keys}.{name}".lstrip(".")
            place = YamlPlace(self.place.file, key.start_mark.line + 1, keys)
            if not name:
                problems.append(place.problem("a key is not a scalar", "write lines of `key: value`"))
            elif name in values:
                problems.append(
                    place.problem(f"duplicate key, first in line {values[name].place.line}", "remove one of the two")
                )
            else:
                values[name] = YamlValue(place, _plain(node), node)
        return values

    def items(self, problems: list[Problem]) -> Iterator[YamlValue]:
        """Yield the elements of a list. Add errors to ``problems``."""
        if not isinstance(self.node, yaml.SequenceNode):
            problems.append(self.place.problem("the value is not a list", "begin each element's line with `- `"))
            return
        for number, node in enumerate(self.node.value):
            place = YamlPlace(self.place.file, node.start_mark.line + 1, f"{self.place.keys}[{number}]")
            yield YamlValue(place, _plain(node), node)


def read_yaml(path: Path) -> YamlValue:
    """Read a file with one YAML document.

    :raises ConfigurationError: the file cannot be read, or is not valid YAML.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
        if node is None:
            raise ConfigurationError("the file is empty", where=str(path), hint="see docs/nightly.md for an example")
        return YamlValue(YamlPlace(str(path), node.start_mark.line + 1), _plain(node), node)
    except OSError as error:
        raise ConfigurationError(
            f"the file cannot be read: {error.strerror}", where=str(path), hint="correct the file's path or permissions"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = str(YamlPlace(str(path), mark.line + 1)) if mark else str(path)
        what = getattr(error, "problem", None) or str(error)
        raise ConfigurationError(f"invalid YAML: {what}", where=where, hint="correct that line") from None


def _plain(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()
