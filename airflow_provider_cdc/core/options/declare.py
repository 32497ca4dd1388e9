"""Functions and classes that declare options: their types, defaults, accepted values and descriptions.

``core.options.arguments`` declares the options of a run.
"""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from dataclasses import replace as replaced
from datetime import date
from difflib import get_close_matches
from types import MappingProxyType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)
from typing import get_type_hints as hints_of

import msgspec

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.kinds import has
from airflow_provider_cdc.errors import ConfigurationError, Problem

Options = TypeVar("Options")
Class = TypeVar("Class", bound=type)

Template: TypeAlias = str
"""A Jinja template. Airflow renders it when the task runs, and the result has the type of the option."""


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
    of_no_table: Any = field(default_factory=dict)
    """The value of an option by table if no table has a value."""

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

    ``name`` is the name of the option in forms, in manifests and in messages. ``place`` is the object and the attribute
    with which the author of a DAG sets it (``Limits.max_reads``), or the argument (``as_of``). ``default`` is `MISSING`
    if a value is required. ``argument`` is the name of the operator's attribute. ``feature`` names the feature that a
    kind of source needs for the option. It is empty if all kinds support the option. ``secret``: users may put secrets
    into the value, so the value is never shown. ``title``: the title of the DAGs' param for the option, in the form's
    ``section``; without a title, the DAGs have no param. The section of the common options is empty, and is open at
    first. ``by_table``: the object sets the value of one table, and the option is a mapping by table. ``key``: the
    attribute names this table, and is no option of its own. ``fixed``: the value cannot be a template. ``deprecated``:
    the option has no effect, and will be removed.
    """

    name: str
    default: Any
    accepts: Accepted
    help: str
    example: str
    place: str = ""
    argument: str = ""
    feature: str = ""
    secret: bool = False
    title: str = ""
    section: str = ""
    common: bool = False
    by_table: bool = False
    key: bool = False
    fixed: bool = False
    deprecated: bool = False

    def fits(self, kind: str) -> bool:
        """Return whether sources of this kind support the option."""
        return has(kind, self.feature)

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def in_form(self) -> bool:
        return bool(self.title)

    @property
    def where(self) -> str:
        """The option in messages: its name in forms and, if it differs, the place where the author of a DAG sets it."""
        place = f" ({self.place})" if self.place and self.place != self.argument else ""
        return f"parameter {self.argument}{place}"

    def check(self, value: Any) -> Problem | None:
        """Return the problem with ``value``, or None if the value is accepted."""
        if self.accepts.holds(value):
            return None
        shown = f"a value of type {type(value).__name__}" if value and self.secret else repr(value)
        alike = get_close_matches(value, self.accepts.schema.get("enum", ()), 1) if isinstance(value, str) else ()
        hint = f"did you mean {alike[0]}?" if alike else f"give {self.example}"
        return Problem(self.where, f"{shown} is not {self.accepts.what}", hint)

    def of_all_tables(self) -> Option:
        """Return the option with its values by table. Only for an option ``by_table``, which is declared for one."""
        each = self.accepts
        return replaced(
            self,
            default=None,
            accepts=Accepted(
                f"an object with {each.what} for each table; or null",
                dict[_Text, each.type] | None,  # type: ignore[name-defined]
                {"type": ["object", "null"], "additionalProperties": each.schema},
                lambda value: {table: each.plain(one) for table, one in (value or {}).items()} or each.of_no_table,
            ),
            example=f'an object such as {{"shop.orders": {self.example.partition(" such as ")[2]}}}',
        )


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
    common: bool = False,
    by_table: bool = False,
    key: bool = False,
    fixed: bool = False,
    deprecated: bool = False,
    kw_only: bool = True,
) -> Any:
    """Declare an option; see `Option`. ``name`` is the option's name, if it differs from the name of the attribute.

    :param common: the option is one of those that most users set. A form shows it at first.
    :param kw_only: whether the attribute must be named in the call of its class.
    """
    declared = Option(
        name, default, accepts, help, example, "", argument, feature, secret, title, "", common, by_table, key,
        fixed, deprecated,
    )  # fmt: skip
    return field(default=default, kw_only=kw_only, metadata={"option": declared})


# The objects whose attributes are options.


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def declaration(kind: Class) -> Class:
    """Make a class of a `Declaration`: a frozen dataclass."""
    made: Any = dataclass(frozen=True, kw_only=True, repr=False)(kind)
    hints = hints_of(made)
    made.objects = {one.name: tuple(classes_in(hints[one.name])) for one in fields(made)}
    return made  # type: ignore[no-any-return]


class Declaration:
    """The base of the objects that group the options of a run. Their attributes are declared with `option`.

    In place of an object, its first attribute is accepted. Values are checked when an object is created, except
    templates and outputs of tasks.
    """

    section: ClassVar[str] = ""
    """The section of the form that has these options. Empty: the section that is open at first."""
    implies: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Values of other options that such an object sets."""
    objects: ClassVar[Mapping[str, Sequence[type[Declaration]]]]
    """The classes whose objects each attribute accepts."""

    def __new__(cls, *values: Any, **named: Any) -> Any:
        check_names(named, [one.name for one in fields(cls)], cls.__name__, "attribute")  # type: ignore[arg-type]
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            place, value = f"{type(self).__name__}.{one.name}", getattr(self, one.name)
            kinds, declared = self.objects[one.name], one.metadata.get("option")
            if isinstance(value, Declaration):
                if not isinstance(value, tuple(kinds)):
                    raise unfit(place, value, kinds)
            elif declared is not None:
                check_given(declared, value, one.default, place)
            else:
                object.__setattr__(self, one.name, kinds[0].of_first(value, place))

    @classmethod
    def first(cls) -> str:
        """Return the name of the attribute for which a plain value stands. Empty: the class has no such attribute."""
        attribute = fields(cls)[0]  # type: ignore[arg-type]
        return "" if attribute.kw_only else attribute.name

    @classmethod
    def of_first(cls, value: Any, place: str) -> Self:
        """Return the object for which a plain value stands.

        :raises ConfigurationError: no value stands for an object of this class.
        """
        if not cls.first():
            raise unfit(place, value, [cls])
        return cls(value)

    def __repr__(self) -> str:
        """Return the call that creates the object. Values that may hold secrets are masked."""
        shown = []
        for number, one in enumerate(fields(self)):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if value != one.default:
                if one.metadata.get("option") is not None and one.metadata["option"].secret:
                    value = masked(value)
                shown.append(f"{value!r}" if not number and not one.kw_only else f"{one.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def check_names(given: Collection[str], known: Sequence[str], owner: str, what: str) -> None:
    """Check that all given names are known.

    :raises ConfigurationError: a name is not known. The hint is the name that is most like it.
    """
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{owner} has no {what} {name!r}", hint=nearest(name, known, what))


def nearest(name: str, known: Sequence[str], what: str) -> str:
    """Return a hint with the known name that is most like ``name``, or with all known names."""
    alike = get_close_matches(name, known, 1)
    return f"did you mean {alike[0]}?" if alike else f"its {what}s are {', '.join(known)}"


def check_given(declared: Option, value: Any, default: Any, place: str) -> None:
    """Check a value that the author of a DAG gives, unless it is known only when the tasks run.

    :raises ConfigurationError: the value is not accepted.
    """
    if value is default or rendered_later(value) or declared.accepts.holds(value):
        return
    if isinstance(value, str) and not declared.fixed and declared.accepts.holds(_native(value)):
        return
    problem = declared.check(value)
    assert problem is not None
    raise ConfigurationError(problem.what, where=place, hint=problem.hint)


def unfit(place: str, value: Any, kinds: Sequence[type[Any]]) -> ConfigurationError:
    """Return the error about an object in a place that does not accept it."""
    names = " or ".join(kind.__name__ for kind in kinds)
    hint = f"give an object {names}" if names else "give a plain value"
    return ConfigurationError(f"{value!r} is not accepted here", where=place, hint=hint)


def rendered_later(value: Any) -> bool:
    """Return whether a value is known only when the tasks run: a template, the output of a task, or a container that
    has one."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(rendered_later, (*value, *value.values())))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(rendered_later, value))
    return not isinstance(value, (int, float, date, type(None), Declaration))


def _native(text: str) -> Any:
    """Return what Airflow makes of a template with this text."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_SECRET = re.compile(r"[?#]|://[^/]*:[^/]*@")
"""The parts of a URI that may hold a secret: a query, a fragment, a password."""


def masked(value: Any) -> Any:
    """Return a value that may hold secrets as it can be shown."""
    if isinstance(value, Mapping):
        return dict.fromkeys(value, "***")
    return "***" if not isinstance(value, str) or _SECRET.search(value) else value


def classes_in(hint: Any) -> Iterator[type[Declaration]]:
    """Yield the classes of objects in a type."""
    if isinstance(hint, type) and issubclass(hint, Declaration):
        yield hint
    elif get_origin(hint) in (Annotated, Union, UnionType, Sequence):
        for one in get_args(hint):
            yield from classes_in(one)


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
CONNECTIONS = Accepted(
    "a list of ids of connections; or null",
    list[_Text] | None,
    {"type": ["array", "null"], "items": _TEXT},
    lambda value: list(value or []),
)
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
CONDITION = Accepted("a condition", _Text, _TEXT)
COLUMNS = Accepted(
    "a list of columns",
    _Texts,
    {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    list,
)
LAYOUT = replaced(COLUMNS, of_no_table=None)
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
# Airflow's limit. Rendering makes a number of text such as 20260131. The number 0 may have been the text 00.
PARTITION_KEY = Accepted(
    "text of at most 250 characters that is not blank, a number above 0, or empty",
    Annotated[str, msgspec.Meta(pattern=r"\A\Z|\S", max_length=250)] | _Count | None,
    {"type": ["string", "integer", "null"], "maxLength": 250},
    lambda value: str(value or ""),
)


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


def name_of(attribute: Field[Any]) -> str:
    """Return the name of the option that an attribute holds. Empty: it is a group of options, or the name of a
    table."""
    declared: Option | None = attribute.metadata.get("option")
    return declared.name or attribute.name if declared is not None and not declared.key else ""


def values_of(options: Any) -> dict[str, Any]:
    """Return the values of ``options``, an instance of an options class, by option name."""
    values: dict[str, Any] = {}
    for attribute in fields(options):
        value = getattr(options, attribute.name)
        values |= {name: value} if (name := name_of(attribute)) else values_of(value)
    return values


def made_of(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Create an instance of an options class from ``values``, by option name."""
    types = hints_of(kind)
    arguments = {
        attribute.name: values[name] if (name := name_of(attribute)) else made_of(types[attribute.name], values)
        for attribute in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**arguments)


def declared_in(kind: type[Any]) -> Iterator[Option]:
    """Yield the options that a class declares, in order, with those of the objects that its attributes accept."""
    hints, is_group = hints_of(kind, include_extras=True), issubclass(kind, Declaration)
    attributes = {one.name: one for one in fields(kind)}
    for name, attribute in attributes.items():
        declared: Option | None = attribute.metadata.get("option")
        if declared is not None and not declared.key:
            own = declared.name or name
            declared = replaced(
                declared,
                name=own,
                argument=declared.argument or own,
                place=f"{kind.__name__}.{name}" if is_group else name,
                section="" if declared.common or not is_group else kind.section,
            )
            yield declared.of_all_tables() if declared.by_table else declared
        for group in classes_in(hints[name]):
            yield from declared_in(group)


# The words that options accept.


ALLOW, WAIT, REFUSE = "allow", "wait", "refuse"
AUTO, OFF = "auto", "off"
BEGIN_ANEW = "begin_anew"
CONSISTENCIES = ("auto", "watermark", "lock", "exported", "again")
FAIL, SKIP = "fail", "skip"
FIRST_SHARD, BY_NAME = "first_shard", "name"
CODECS = ("zstd", "snappy")
FORMATS = ("parquet", "iceberg")
FULL, CHANGES = "full", "changes"
NEW_COLUMN, REPLACE = "new_column", "replace"
ORIGIN_IN_KEY = "origin_in_key"
PRESENT = "present"
RESTART_TABLE, GIVE_UP_PAST = "restart_table", "give_up_past"
STOP, WARN = "stop", "warn"
TEXT, LIST = "text", "list"
UNREPRESENTABLE = ("error", "null", "string")
