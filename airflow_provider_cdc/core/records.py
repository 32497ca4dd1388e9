"""Records: what tries and steps of a run leave for each other as JSON, read strictly.

A record is a frozen dataclass. `decode` makes it from JSON, and is the one place that says what is wrong with a record
that is none: truncated, of another shape, of other types.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError, ManifestError

Record = TypeVar("Record")

HINT = "a record of the run was altered from outside, or its storage lost some of it: trigger a new run"
_DIGITS = 32


@dataclass(frozen=True)
class Failure:
    """Why a step's app failed, for the task that started it."""

    type: str
    message: str
    terminal: bool


def digest_of(data: Any) -> str:
    """A digest of JSON data: the same for equal data, whatever the order of keys."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def decode(kind: type[Record], data: Any, where: str) -> Record:
    """Make a record from JSON data.

    :param where: what the record is called in an error.
    :raises ManifestError: the data is no such record.
    """
    try:
        return cast(Record, _decoded(kind, data, ""))
    except _WrongShape as wrong:
        raise ManifestError(f"the record is damaged: {wrong}", where=where, hint=HINT) from None


@contextmanager
def decoding(where: str) -> Iterator[None]:
    """Say what is wrong with a record that code of its own makes objects from.

    :raises ManifestError: in place of the errors that data of another shape leads to.
    """
    try:
        yield
    except ManifestError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, CdcError) as error:
        raise ManifestError(
            f"the record is damaged: {type(error).__name__}: {error}", where=where, hint=HINT
        ) from error


def read(kind: type[Record], run: Storage, name: str) -> Record:
    """The record in the file ``name``.

    :raises ManifestError: there is none, or it is damaged.
    """
    return decode(kind, read_data(run, name), run.uri_of(name))


def read_data(run: Storage, name: str) -> Any:
    """The JSON data in the file ``name``.

    :raises ManifestError: there is none, or it is no JSON.
    """
    try:
        return run.read_json(name)
    except FileNotFoundError as error:
        raise ManifestError("the record is gone", where=run.uri_of(name), hint=HINT) from error


def write_named(run: Storage, prefix: str, data: Any) -> str:
    """Write a record whose name holds its digest, and return the name: who names it, names what is in it."""
    name = f"{prefix}-{digest_of(data)}.json"
    run.write_json(name, data)
    return name


def read_named(run: Storage, name: str) -> Any:
    """The data of a record that `write_named` wrote.

    :raises ManifestError: it is not what was written.
    """
    data = read_data(run, name)
    if not name.endswith(f"-{digest_of(data)}.json"):
        raise ManifestError("the record is not the one that was written", where=run.uri_of(name), hint=HINT)
    return data


class _WrongShape(Exception):
    pass


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field of a dataclass, and whether it must be there."""
    hints = get_type_hints(kind)
    return {
        one.name: (hints[one.name], one.default is MISSING and one.default_factory is MISSING) for one in fields(kind)
    }


def _decoded(kind: Any, data: Any, at: str) -> Any:
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _dataclass(cast(type[Any], kind), data, at)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):
        inner = [one for one in arguments if one is not type(None)]
        return None if data is None and len(inner) < len(arguments) else _decoded(inner[0], data, at)
    if origin in (tuple, list, Sequence):
        _require(isinstance(data, list), "a list", data, at)
        values = [_decoded(arguments[0], one, f"{at}[{number}]") for number, one in enumerate(data)]
        return values if origin is list else tuple(values)
    if origin in (dict, Mapping):
        _require(isinstance(data, dict), "an object", data, at)
        return {name: _decoded(arguments[1], one, f"{at}.{name}") for name, one in data.items()}
    if kind is float:
        _require(isinstance(data, (int, float)) and not isinstance(data, bool), "a number", data, at)
        return float(data)
    _require(isinstance(data, kind) and (kind is bool or not isinstance(data, bool)), kind.__name__, data, at)
    return data


def _dataclass(kind: type[Any], data: Any, at: str) -> Any:
    _require(isinstance(data, dict), "an object", data, at)
    known = _fields(cast(Any, kind))
    if strange := data.keys() - known.keys():
        raise _WrongShape(f"{at or 'it'} has {', '.join(sorted(map(repr, strange)))}, which it should not")
    if missing := {name for name, (_, needed) in known.items() if needed} - data.keys():
        raise _WrongShape(f"{at or 'it'} lacks {', '.join(sorted(map(repr, missing)))}")
    return kind(**{name: _decoded(known[name][0], value, f"{at}.{name}") for name, value in data.items()})


def _require(fits: bool, wanted: str, data: Any, at: str) -> None:
    if not fits:
        raise _WrongShape(
            f"{at.lstrip('.') or 'it'} is no {wanted.removeprefix('a ').removeprefix('an ')}: {data!r:.80}"
        )
