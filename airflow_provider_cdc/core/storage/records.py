"""Records: JSON files that the tries and steps of a run write for each other. Records are read strictly.

A record is a frozen dataclass, and msgspec is its only serializer. `encode` converts a record to JSON data. `decode`
converts JSON data to a record, and is the only place that reports invalid data: truncated, with another structure, or
with other types. Unknown keys are rejected, because exactness may depend on their meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ManifestError

Record = TypeVar("Record")

HINT = "a record of the run was changed by another program, or the store lost a part of it: trigger a new run"
OTHER_VERSION = "finish the run with the version that began it, or trigger a new run"
_DIGITS = 32
# Matches, for example: Expected `int`, got `str` - at `$.files[0].size`
_PLACED = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>.*)`", re.DOTALL)


@dataclass(frozen=True)
class Failure:
    """The reason why a step's Spark application failed, for the task that started the application."""

    type: str
    message: str
    terminal: bool


def encode(record: Any) -> Any:
    """Return the JSON data of a record, or of a collection of records.

    An object whose class has ``parse`` (such as a table's name) becomes its text, or the JSON object that its method
    ``fields`` returns; keys of objects become text.
    """
    return msgspec.to_builtins(record, str_keys=True, enc_hook=_encoded)


def decode(kind: type[Record], data: Any, where: str) -> Record:
    """Convert JSON data to a record.

    :param kind: the class of the record, or a collection of records, such as ``dict[str, Failure]``.
    :param where: the name of the record in an error.
    :raises ManifestError: the data is not such a record.
    """
    try:
        record = msgspec.convert(data, kind, strict=True, str_keys=True, dec_hook=_parsed)
    except msgspec.ValidationError as error:
        raise _damaged(_worded(str(error)), where) from None
    _complete(record)
    if unknown := _unknown(data, encode(record), ""):
        raise ManifestError(
            f"another version wrote the record: {unknown} is not known", where=where, hint=OTHER_VERSION
        )
    return record


def digest_of(record: Any) -> str:
    """Return a digest of a record or of JSON data. Equal data has equal digests. The order of keys has no effect on the
    digest."""
    text = json.dumps(encode(record), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def read(kind: type[Record], run: Storage, name: str) -> Record:
    """Return the record in the file ``name``.

    :raises ManifestError: the file does not exist, or the record is damaged.
    """
    return decode(kind, read_data(run, name), run.uri_of(name))


def read_data(run: Storage, name: str) -> Any:
    """Return the JSON data in the file ``name``.

    :raises ManifestError: the file does not exist, or its content is not JSON.
    """
    try:
        return run.read_json(name)
    except FileNotFoundError as error:
        raise ManifestError("the record is gone", where=run.uri_of(name), hint=HINT) from error


def write(run: Storage, name: str, record: Any) -> None:
    """Write a record to the file ``name``, as `Storage.write_json` does."""
    run.write_json(name, encode(record))


def write_named(run: Storage, prefix: str, record: Any) -> str:
    """Write a record to a file whose name contains its digest; return the name, which identifies the content."""
    name = f"{prefix}-{digest_of(record)}.json"
    write(run, name, record)
    return name


def read_named(kind: type[Record], run: Storage, name: str) -> Record:
    """Return a record that `write_named` wrote.

    :raises ManifestError: the file does not have the record that was written.
    """
    data = read_data(run, name)
    if not name.endswith(f"-{digest_of(data)}.json"):
        raise ManifestError("the record was changed after it was written", where=run.uri_of(name), hint=HINT)
    return decode(kind, data, run.uri_of(name))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(record_field.name for record_field in fields(kind))


def _complete(value: Any) -> None:
    """Set the defaults of missing fields in decoded records.

    msgspec does not set the defaults of missing fields on the instance, and does not encode fields that are not set.
    Equal records must have equal digests, so all fields must be set.
    """
    if is_dataclass(value):
        attributes = vars(value)
        for name in _names(value.__class__):
            if name in attributes:
                _complete(attributes[name])
            else:
                object.__setattr__(value, name, getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _complete(item)
    elif isinstance(value, dict):
        for item in value.values():
            _complete(item)


def _encoded(value: Any) -> Any:
    if not hasattr(type(value), "parse"):
        raise NotImplementedError(f"{type(value).__name__} cannot be stored in a record")
    return value.fields() if hasattr(value, "fields") else str(value)


def _parsed(kind: Any, data: Any) -> Any:
    if not (isinstance(data, str) or hasattr(kind, "fields")):
        raise ValueError(f"Expected the text of a {kind.__name__}, got {data!r:.80}")
    try:
        return kind.parse(data)
    except CdcError as error:
        raise ValueError(error.message) from None


def _unknown(data: Any, known: Any, at: str) -> str:
    """Return the first key in ``data`` that the decoded record does not have. ``known`` is the JSON data of the decoded
    record."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            if name not in known:
                return f"{at}.{name}".lstrip(".")
            if path := _unknown(value, known[name], f"{at}.{name}"):
                return path
    elif isinstance(data, list):
        for number, (value, known_item) in enumerate(zip(data, known, strict=True)):
            if path := _unknown(value, known_item, f"{at}[{number}]"):
                return path
    return ""


def _worded(error: str) -> str:
    placed = _PLACED.fullmatch(error)
    what, place = (placed["what"], placed["place"]) if placed else (error, "")
    what = what.replace("`", "")
    return f"{place}: {what[0].lower()}{what[1:]}" if place else f"{what[0].lower()}{what[1:]}"


def _damaged(what: str, where: str) -> ManifestError:
    return ManifestError(f"the record is damaged: {what}", where=where, hint=HINT)
