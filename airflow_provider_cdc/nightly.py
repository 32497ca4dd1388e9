"""The configuration file of the DAG `nightly`. The file is read when the DAG is parsed, without access to a database or
a connection.

::

    schedule: "30 0 * * *"           # cron; default: midnight
    timezone: Europe/Berlin          # of the schedule; default: UTC
    deadline_minutes: 360            # alert if a run takes longer; default: never
    defaults:                        # options of all sources
      on: {table_error: skip}
    sources:
      - source_conn_id: cdc_mysql
        kind: mysql
        tables: ["shop.*", {name: shop.orders, where: "status = 'open'"}]
        target: {uri: s3://lake/raw, format: {iceberg: {catalog_conn_id: lake}}, retention: {copies: 7}}

The keys of a source are the arguments of a `SnapshotTaskGroup`, ``kind`` (``mysql``, ``postgres``), and ``name``, the
prefix of its task ids (default: the id of the connection). An object is a mapping with its attributes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from airflow_provider_cdc.core.options.arguments import REMOVED_IN, declared, options_by_name, places
from airflow_provider_cdc.core.options.declare import Declaration, Option, name_of, nearest
from airflow_provider_cdc.core.options.flat import paths, with_tables
from airflow_provider_cdc.core.positions import kinds
from airflow_provider_cdc.core.positions.as_of import INTERVAL_END
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.api.registry import KINDS
from airflow_provider_cdc.sources.planning.patterns import Pattern

# Reads YAML and keeps the line and the key of every value, so that error messages can name the place of an error.


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


_KEYS = ("schedule", "timezone", "start_date", "deadline_minutes", "defaults", "sources")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_START = datetime(2025, 1, 1)


@dataclass(frozen=True)
class NightlySource:
    """One source: ``name`` is the prefix of its task ids, ``options`` are the values of options, by
    option name (`SnapshotTaskGroup.of_options`)."""

    name: str
    kind: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Nightly:
    """The content of the file. ``schedule`` is a cron expression in ``timezone``. ``start_date`` is a naive time in
    ``timezone``."""

    schedule: str
    timezone: str
    start_date: datetime
    deadline_minutes: int | None
    sources: tuple[NightlySource, ...]


def read_nightly(path: Path) -> Nightly:
    """Read the file.

    :raises ConfigurationError: the file cannot be read, or is not valid YAML.
    :raises PreflightError: the file has errors. The error lists all of them, each with its line and key.
    """
    problems: list[Problem] = []
    document = read_yaml(path)
    given = document.mapping(problems)
    unknown = [given[key] for key in sorted(given.keys() - set(_KEYS))]
    problems += [
        value.place.problem("there is no such key", nearest(value.place.keys, _KEYS, "key")) for value in unknown
    ]
    nightly = Nightly(
        schedule=_checked(
            given.get("schedule"), "0 0 * * *", _is_cron, "a cron expression such as 30 0 * * *", problems
        ),
        timezone=_checked(given.get("timezone"), "UTC", _is_zone, "a time zone such as Europe/Berlin", problems),
        start_date=_date(given.get("start_date"), problems),
        deadline_minutes=_checked(
            given.get("deadline_minutes"), None, _is_count, "a whole number of minutes above 0", problems
        ),
        sources=tuple(_sources(document, given, problems)),
    )
    if problems:
        raise PreflightError(problems)
    return nightly


def _sources(document: YamlValue, given: Mapping[str, YamlValue], problems: list[Problem]) -> list[NightlySource]:
    if "sources" not in given:
        problems.append(document.place.problem("the file has no sources", "add the key sources, with a list"))
        return []
    defaults = _options_in(given["defaults"].mapping(problems), problems) if "defaults" in given else {}
    sources: dict[str, NightlySource] = {}
    for element in given["sources"].items(problems):
        source = _source(element, defaults, problems)
        if source is None:
            continue
        if source.name in sources:
            problems.append(
                element.place.problem(
                    f"another source has the same name for its tasks, {source.name}", "give this source another name"
                )
            )
        sources[source.name] = source
    _check_unused(defaults, sources, problems)
    if not sources and not problems:
        problems.append(given["sources"].place.problem("the list has no sources", "add at least one"))
    return list(sources.values())


def _source(element: YamlValue, defaults: Mapping[str, YamlValue], problems: list[Problem]) -> NightlySource | None:
    before = len(problems)
    option_values = element.mapping(problems)
    kinds = [kind.name for kind in KINDS]
    kind = option_values.pop("kind", None)
    if kind is None or kind.plain not in kinds:
        place = element.place if kind is None else kind.place
        problems.append(place.problem("the source has no valid kind", f"set kind to one of {', '.join(kinds)}"))
        return None
    name = option_values.pop("name", None)
    given = _options_in(option_values, problems)
    fitting_options = {one.name: one for one in declared() if one.fits(kind.plain)}
    unfit = [given[key].place for key in sorted(given.keys() - fitting_options.keys())]
    problems += [place.problem(f"{kind.plain} has no such option", "remove the key") for place in unfit]
    # The defaults apply to all sources, so ignore an option that this kind of source does not have.
    values = {key: value for key, value in {**defaults, **given}.items() if key in fitting_options}
    for key, value in values.items():
        _check_option(fitting_options[key], value, problems)
    for key, option in fitting_options.items():
        if option.required and key not in values:
            problems.append(element.place.problem(f"the source has no {key}", f"give {option.example}"))
    if len(problems) > before:
        return None
    called = str(name.plain) if name else re.sub(r"[^A-Za-z0-9_-]", "_", str(values["source_conn_id"].plain))
    if not _NAME.fullmatch(called):
        place = name.place if name else element.place
        problems.append(
            place.problem(f"{called!r} cannot be a prefix of task ids", "use ASCII letters, digits, _ and - only")
        )
        return None
    options = {key: value.plain for key, value in values.items()}
    return NightlySource(called, kind.plain, _preferred(kind.plain, fitting_options, options) | options)


def _preferred(kind: str, ours: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of this kind of source whose nightly defaults differ from the defaults of a single run."""
    # Some kinds of source keep the log of past days only if the option ``standing_slot`` is set.
    goes_back = "as_of" in ours and (kinds.KINDS[kind].keeps_past or bool(given.get("standing_slot")))
    preferred = {"as_of": INTERVAL_END} if goes_back else {}
    return preferred | ({"refresh": "auto"} if "refresh" in ours else {})


def _options_in(given: Mapping[str, YamlValue], problems: list[Problem]) -> dict[str, YamlValue]:
    """Return the values of options, by option name, that the keys of a source set."""
    found: dict[str, YamlValue] = {}
    known = [*(name for name in places() if name != "allow")]
    for key, value in given.items():
        if key not in known:
            if key in options_by_name():
                _warn_of_key(key, value)
                found[key] = value
            else:
                problems.append(value.place.problem("there is no such key", nearest(key, known, "key")))
        elif key == "tables" or not places()[key]:
            found[key] = value
        else:
            found |= _attributes_in(places()[key][0], value, problems)
    return found


def _warn_of_key(key: str, value: YamlValue) -> None:
    option = options_by_name()[key]
    hint = "remove it" if option.deprecated else f"write it as {paths()[key]}"
    text = f"{value.place}: from version {REMOVED_IN} on, there is no such key: {hint}"
    warnings.warn_explicit(text, DeprecationWarning, value.place.file, value.place.line)


def _attributes_in(kind: type[Declaration], value: YamlValue, problems: list[Problem]) -> dict[str, YamlValue]:
    """Return the values of options, by option name, that an object sets."""
    if kind.first() and not isinstance(value.node, yaml.MappingNode):
        return {_option_of(kind, kind.first()): value}
    found: dict[str, YamlValue] = {}
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key, attribute in value.mapping(problems).items():
        if key not in names:
            problems.append(attribute.place.problem("there is no such key", nearest(key, names, "key")))
            continue
        option, nested = _option_of(kind, key), next(iter(kind.objects[key]), None)
        if nested is None or (option and not isinstance(attribute.node, yaml.MappingNode)):
            found[option] = attribute
        elif not option:
            found |= _attributes_in(nested, attribute, problems)
        else:
            # The key of the mapping is the value for which the object stands, such as iceberg.
            word = nested.implies[option]
            for name, inner in attribute.mapping(problems).items():
                if name == word:
                    found |= {option: replace(inner, plain=word), **_attributes_in(nested, inner, problems)}
                else:
                    problems.append(inner.place.problem("there is no such key", nearest(name, [word], "key")))
    return found


def _option_of(kind: type[Declaration], attribute: str) -> str:
    """Return the name of the option that an attribute sets. Empty: it accepts only objects."""
    return next((name_of(one) for one in fields(kind) if one.name == attribute), "")  # type: ignore[arg-type]


def _check_option(option: Option, value: YamlValue, problems: list[Problem]) -> None:
    # The value of a template is checked after rendering, when the run begins.
    if isinstance(value.plain, str) and "{{" in value.plain:
        return
    if option.name == "tables" and isinstance(value.plain, list):
        _check_tables(option, value, problems)
        return
    if problem := option.check(value.plain):
        problems.append(value.place.problem(problem.what, problem.hint))
        return
    try:
        if option.name == "target" or (option.name == "scratch" and value.plain):
            LakeUri.parse(value.plain.replace("{source}", "source"))
        elif option.name in ("where", "columns"):
            for pattern in value.plain or {}:
                Pattern.parse(pattern)
    except ConfigurationError as error:
        problems.append(value.place.problem(error.message, error.hint))


def _check_tables(option: Option, value: YamlValue, problems: list[Problem]) -> None:
    try:
        patterns = with_tables({"tables": value.plain})["tables"]
        if problem := option.check(patterns):
            problems.append(value.place.problem(problem.what, problem.hint))
            return
        for pattern in patterns:
            Pattern.parse(pattern.removeprefix("!"))
    except ConfigurationError as error:
        what = error.message if error.where in ("", "tables") else f"{error.where}: {error.message}"
        problems.append(value.place.problem(what, error.hint))


def _check_unused(
    defaults: Mapping[str, YamlValue], found: Mapping[str, NightlySource], problems: list[Problem]
) -> None:
    used = {key for source in found.values() for key in source.options}
    for key, value in defaults.items():
        if key not in used and not problems:
            problems.append(
                value.place.problem("no source has such an option", "the options are those of SnapshotTaskGroup")
            )


def _checked(value: YamlValue | None, default: Any, holds: Any, what: str, problems: list[Problem]) -> Any:
    if value is None:
        return default
    if not holds(value.plain):
        problems.append(value.place.problem(f"{value.plain!r} is not {what}", f"give {what}"))
        return default
    return value.plain


def _date(value: YamlValue | None, problems: list[Problem]) -> datetime:
    if value is None:
        return _START
    if isinstance(value.plain, date) and not isinstance(value.plain, datetime):
        return datetime.combine(value.plain, datetime.min.time())
    problems.append(value.place.problem(f"{value.plain!r} is not a date", "write it as 2026-01-31"))
    return _START


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_zone(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(value) and ZoneInfo(value) is not None
    except (KeyError, OSError, ValueError):
        return False


def _is_cron(value: Any) -> bool:
    from croniter import croniter

    return isinstance(value, str) and len(value.split()) == 5 and bool(croniter.is_valid(value))
