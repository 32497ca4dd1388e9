"""Functions and classes that declare an option of a run, with its accepted values and its description.
``core.options.run`` declares all options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.kinds import has
from airflow_provider_cdc.errors import Problem

Options = TypeVar("Options")


FOLDED = "Reading and publishing"
"""The section of a form for options that few runs need. Airflow's own section is called "Advanced Options"."""


@dataclass(frozen=True)
class Accepted:
    """The values that an option accepts.

    ``what`` completes the message "… is not …" for a value that is not accepted. ``type`` is the type of an accepted
    value, with its constraints as `msgspec.Meta`. ``schema`` is the JSON schema for a form; it may accept more than
    ``type``.
    """

    what: str
    type: Any
    schema: Mapping[str, Any]
    plain: Callable[[Any], Any] = lambda value: value
    """Converts an accepted value to the option's type."""
    features: Collection[str] = ()
    """Choices that need a feature of the same name. Forms offer such a choice only for kinds of sources with this
    feature."""

    def holds(self, value: Any) -> bool:
        """Return whether ``value`` is accepted."""
        if isinstance(value, (set, frozenset)):
            # msgspec accepts a set as a list, but the order of patterns matters.
            return False
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            return False
        return True

    def schema_for(self, kind: str) -> dict[str, Any]:
        """Return the JSON schema of the values that one kind of source supports; empty ``kind``: any kind."""
        schema = dict(self.schema)
        if kind and self.features:
            fit = [choice for choice in schema["enum"] if choice not in self.features or has(kind, choice)]
            schema["enum"] = fit
            schema["values_display"] = {choice: schema["values_display"][choice] for choice in fit}
        return schema


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    ``default`` is `MISSING` if a value is required. ``type`` is the type of a checked value. ``argument`` is the name
    of the operator's argument. ``feature`` names the feature that a kind of source needs for the option. It is empty if
    all kinds support the option. ``secret``: users may put secrets into the value, so the value is never shown.
    ``in_form``: the DAGs that come with the package have a param for the option. The param has the title ``title``, and
    is in the form's ``section``; empty: the section that is open at first. ``fixed``: the DAG's author sets the option,
    and its value cannot be a template. ``deprecated``: the option has no effect, and will be removed.
    """

    name: str
    type: Any
    default: Any
    accepts: Accepted
    help: str
    example: str
    argument: str
    feature: str
    secret: bool
    in_form: bool
    title: str
    section: str
    fixed: bool
    deprecated: bool

    def fits(self, kind: str) -> bool:
        """Return whether sources of this kind support the option."""
        return has(kind, self.feature)

    @property
    def required(self) -> bool:
        return self.default is MISSING

    def check(self, value: Any) -> Problem | None:
        """Return the problem with ``value``, or None if the value is accepted."""
        if self.accepts.holds(value):
            return None
        shown = f"a value of type {type(value).__name__}" if value and self.secret else repr(value)
        return Problem(f"parameter {self.argument}", f"{shown} is not {self.accepts.what}", f"give {self.example}")


def option(
    default: Any = MISSING,
    *,
    accepts: Accepted,
    help: str,
    example: str,
    name: str = "",
    argument: str = "",
    feature: str = "",
    secret: bool = False,
    title: str = "",
    section: str = "",
    fixed: bool = False,
    deprecated: bool = False,
) -> Any:
    """Declare an option; see `Option`. ``name`` is the option's name for users, if it differs from the name of the
    field."""
    declared = {
        "accepts": accepts,
        "help": help,
        "example": example,
        "name": name,
        "argument": argument,
        "feature": feature,
        "secret": secret,
        "title": title,
        "section": section,
        "in_form": bool(title),
        "fixed": fixed,
        "deprecated": deprecated,
    }
    if default is MISSING:
        return field(metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


def one_of(choices: Sequence[str], shown: Sequence[str], features: Collection[str] = ()) -> Accepted:
    """Accept one of several words.

    :param shown: the text that a form shows for each word.
    :param features: see `Accepted`.
    """
    return Accepted(
        f"one of {', '.join(choices)}",
        Literal[tuple(choices)],
        {"type": "string", "enum": list(choices), "values_display": dict(zip(choices, shown, strict=True))},
        features=features,
    )


_NAME = "[a-z0-9_]{0,30}"
_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Texts = Annotated[list[_Text], msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
# Any finite float from 0. The upper bound is needed because msgspec would otherwise accept infinity. msgspec never
# accepts NaN.
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]

_TEXT = {"type": "string", "minLength": 1}


def expecting(wanted: str, **schema: Any) -> dict[str, Any]:
    """Wrap the JSON schema ``schema`` so that the validation error says that ``wanted`` was expected, instead of
    showing a regular expression."""
    return {"if": schema, "else": {"const": wanted}}


CONNECTION = Accepted("the id of a connection", _Text, _TEXT)
CONNECTION_OR_EMPTY = Accepted(
    "the id of a connection, or empty", str | None, {"type": ["string", "null"]}, lambda value: value or ""
)
TABLE_TEMPLATE = Accepted(
    "a template for table names",
    Annotated[str, msgspec.Meta(pattern=r"\S\.\S")],
    {"type": "string", **expecting("a name with its namespace, such as {schema}.{table}", pattern=r"\S\.\S")},
)
URI = Accepted("a URI", _Text, _TEXT)
URI_OR_EMPTY = Accepted("a URI, or empty", str | None, {"type": ["string", "null"]}, lambda value: value or "")
_TABLE = expecting("a table with its schema, such as shop.orders or shop.*", type="string", minLength=3, pattern=r"\.")
TABLE_NAMES = Accepted(
    "a list of table names",
    _Texts,
    {"type": "array", "items": _TABLE, **expecting("a table at least, such as shop.orders", minItems=1)},
)
PATTERNS = Accepted("a list of patterns; or null", list[_Text] | None, {"type": ["array", "null"]})
PROPERTIES = Accepted("an object of Spark properties", dict[_Text, Any] | None, {"type": ["object", "null"]})
CONDITIONS = Accepted(
    "an object with a condition for each table; or null",
    dict[_Text, _Text] | None,
    {"type": ["object", "null"], "additionalProperties": {"type": "string", "minLength": 1}},
    lambda value: dict(value or {}),
)
COLUMNS = Accepted(
    "an object with a list of columns for each table; or null",
    dict[_Text, _Texts] | None,
    {
        "type": ["object", "null"],
        "additionalProperties": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    },
    lambda value: {name: list(columns) for name, columns in (value or {}).items()},
)
COUNT = Accepted("a whole number above 0", _Count, {"type": "integer", "minimum": 1})
COUNT_OR_NONE = Accepted("a whole number", Annotated[int, msgspec.Meta(ge=0)], {"type": "integer", "minimum": 0})
WHOLE_SECONDS = Accepted("a whole number of seconds above 0", _Count, {"type": "integer", "minimum": 1})
SECONDS = Accepted("a number of seconds", _Seconds, {"type": "number", "minimum": 0})
GIB = Accepted("a number of GiB", _Seconds, {"type": "number", "minimum": 0})
SLOT_NAME = Accepted(
    "up to 30 lower-case letters, digits and underscores, or empty",
    Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")] | None,
    {
        "type": ["string", "null"],
        **expecting("lower-case letters, digits and _, such as nightly", pattern=f"^{_NAME}$"),
    },
    lambda value: value or "",
)
FLAG = Accepted("true or false", bool, {"type": "boolean"})


@dataclass(frozen=True)
class _AcceptedPoint(Accepted):
    """Values of ``as_of``: text, and Python's datetimes."""

    def holds(self, value: Any) -> bool:
        return value is None or as_of.is_as_of(value)


# The schema allows null: otherwise the form would show the param as required, and reject an empty text.
AS_OF = _AcceptedPoint(
    "a time with its zone, a date, a GTID set or an LSN, or empty",
    Any,
    # A time of day contains a colon or, as in 2026-01-31T00Z, follows a letter. A GTID set contains colons, and an LSN
    # contains a slash.
    {
        "type": ["string", "null"],
        **expecting(
            "a time such as 2026-01-31T00:00:00Z, a date such as 2026-01-31, a GTID set, or an LSN such as 16/B374D848",
            pattern=r"^\s*$|[/:]|\d[^\d-]\d|^\s*\d{4}-\d\d-\d\d\s*$",
        ),
    },
    lambda value: as_of.text_of(value) or "",
)


def values_of(options: Any) -> dict[str, Any]:
    """Return the values of ``options``, an instance of an options class, by option name."""
    values: dict[str, Any] = {}
    for option_field in fields(options):
        value = getattr(options, option_field.name)
        if is_dataclass(value):
            values |= values_of(value)
        else:
            values[option_field.metadata["option"]["name"] or option_field.name] = value
    return values


def declared_in(kind: type[Any]) -> Iterator[Option]:
    """Yield the options that an options class declares, in order."""
    types = get_type_hints(kind)
    for option_field in fields(kind):
        if is_dataclass(types[option_field.name]):
            yield from declared_in(types[option_field.name])
        else:
            facts = option_field.metadata["option"]
            name = facts["name"] or option_field.name
            argument = facts["argument"] or name
            yield Option(
                **{**facts, "name": name, "argument": argument},
                type=types[option_field.name],
                default=option_field.default,
            )


def made_of(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Create an instance of an options class from ``values``, by option name."""
    types = get_type_hints(kind)
    arguments = {
        option_field.name: made_of(types[option_field.name], values)
        if is_dataclass(types[option_field.name])
        else values[option_field.metadata["option"]["name"] or option_field.name]
        for option_field in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**arguments)
