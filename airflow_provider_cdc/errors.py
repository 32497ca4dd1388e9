"""All errors that this package raises, as one class hierarchy.

::

    CdcError
    ├── TerminalError              a retry cannot help: the cause must be fixed first
    │   ├── ConfigurationError     a parameter, connection or URI that cannot work
    │   │   └── StorageRefused     the lake's store denies access, or has no such bucket
    │   ├── PreflightError         the source cannot give an exact copy; lists every problem at once
    │   ├── PositionError          text or bytes that are not a valid position
    │   ├── DecodeError            bytes that do not follow the format that they claim
    │   ├── ValueNotRepresentable  a value that the chosen Arrow type cannot hold
    │   ├── TableUnreadable        the server cannot read a table
    │   ├── ManifestError          a run's record is missing, unreadable or of another run
    │   ├── FileDamaged            a file of the run is missing, or does not match its record
    │   ├── ChangesMissing         the published changes do not cover the whole time between two copies
    │   ├── RunStopped             an operator stopped the run
    │   ├── RunwayTooShort         the source will remove the log long before the run has read it
    │   ├── CopyDiffers            a verification found differences, or could not verify a table
    │   ├── KeysCollide            several shards of a merged table have a row with the same key
    │   ├── UnionRefused           the shards of several sources cannot be published as one table
    │   └── ExactnessError         an event in the window broke a condition of the proof
    │       ├── SchemaChanged      DDL or TRUNCATE on a copied table, or row images with other columns
    │       ├── LogGone            the log no longer reaches back to the initial position
    │       ├── SourceReplaced     the server is not the server on which the run began
    │       ├── ImageNotWhole      a row image without all its columns, or no row image at all
    │       ├── CascadeNotLogged   a foreign key may have changed rows, and the log omits such changes
    │       ├── UnknownEvent       a log event that this reader does not know
    │       └── CopyMismatch       the rows that were read contradict the log
    ├── LoginRefused               the server refuses the login: a new try of the task takes the present password
    └── TransientError             the same call may succeed later: Airflow retries it
        ├── SourceUnavailable      the server cannot be reached, or ended the session
        ├── StorageUnavailable     the lake's store cannot be reached, is full, or failed
        ├── LockNotGranted         the lock was not granted within the time limit
        ├── SparkFailed            a Spark application ended without reporting a reason
        ├── PublishIncomplete      publishing stopped half-way; running the task again completes it
        └── CommitUnknown          it is unknown whether the run was published; running the task again finds out

The message describes the problem, ``where`` names the object and the position, and ``hint`` tells the reader how to
solve the problem. The errors can be pickled, because Spark sends them from executors to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_cdc.counted import format_count


class CdcError(Exception):
    """Base of all errors of this package.

    :param message: what is wrong.
    :param where: the object and its position in the log, such as ``shop.orders.total at binlog.000007:4312``.
    :param hint: an action that solves the problem.

    ``code`` is stable. The message and the class name may change, so search the documentation for ``code``.
    """

    code: ClassVar[str] = "CDC-1000"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        text = f"[{self.code}] {text}"
        return f"{text}\n  Hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception pickles only its positional arguments, so where and hint would be lost.
        return _rebuild, (type(self), self.__dict__)


def _rebuild(cls: type[CdcError], state: dict[str, Any]) -> CdcError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class TerminalError(CdcError):
    """A retry cannot help."""

    code = "CDC-1001"


class TransientError(CdcError):
    """The same call may succeed later."""

    code = "CDC-1500"


class LoginRefused(CdcError):
    """The server refuses the user or the password.

    The password may have been changed since the task read it. No password is tried twice, because more wrong logins
    could lock the account. But if the connection has another password now, the task of a Spark step starts its
    application again; otherwise Airflow may retry the task.
    """

    code = "CDC-1200"


class ConfigurationError(TerminalError):
    """A parameter, connection or URI that cannot work."""

    code = "CDC-1010"


class StorageRefused(ConfigurationError, OSError):
    """The lake's store denies access, does not have the requested bucket, or does not allow the requested name.

    This error is also an `OSError`, so that cleanup code can handle it without knowing this class.
    """

    code = "CDC-1011"


@dataclass(frozen=True)
class Problem:
    """One reason why a source cannot give an exact copy.

    ``where`` names a setting or a table. ``what`` describes the problem, and ``hint`` says how to correct it. ``table``
    is the table to leave out so that the other tables can be copied. Empty: leaving out a table would not help.
    ``passes`` is true if the problem is temporary: the table cannot be exact at the requested past position, but it can
    be exact at the present position. Later runs can again be exact at a past position.
    """

    where: str
    what: str
    hint: str
    table: str = ""
    passes: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n      Hint: {self.hint}"


class PreflightError(TerminalError):
    """The source cannot give an exact copy as requested. Holds every problem that was found, not only the first."""

    code = "CDC-1020"

    def __init__(self, problems: Sequence[Problem]) -> None:
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__(f"{format_count(len(problems), 'problem')} found before any work began:\n{lines}")
        self.problems = tuple(problems)


class PositionError(TerminalError):
    """Text or bytes that are not a valid position."""

    code = "CDC-1030"


class DecodeError(TerminalError):
    """Bytes that do not follow the format that they claim."""

    code = "CDC-1040"


class ValueNotRepresentable(TerminalError):
    """A value that the chosen Arrow type cannot hold."""

    code = "CDC-1050"


class TableUnreadable(TerminalError):
    """The server cannot read a table, because of a fault of this table."""

    code = "CDC-1051"


class ManifestError(TerminalError):
    """A run's record is missing, unreadable, or belongs to another run."""

    code = "CDC-1060"


class FileDamaged(TerminalError):
    """A file of the run is missing, or does not match its record."""

    code = "CDC-1070"


class ChangesMissing(TerminalError):
    """The published changes do not cover the whole time between two copies."""

    code = "CDC-1080"


class RunStopped(TerminalError):
    """An operator stopped the run. Nothing of it is published."""

    code = "CDC-1090"


class RunwayTooShort(TerminalError):
    """The source will remove the log that the run needs long before the run has read it."""

    code = "CDC-1091"


class CopyDiffers(TerminalError):
    """A verification found differences, or could not verify a table."""

    code = "CDC-1092"


class KeysCollide(TerminalError):
    """Several shards of a merged table have a row with the same key at the run's position. Nothing of the merged table
    is published."""

    code = "CDC-1110"


class UnionRefused(TerminalError):
    """The shards of several sources cannot be published as one merged table. Nothing of the table is published."""

    code = "CDC-1111"


class ExactnessError(TerminalError):
    """An event in the window broke a condition of the proof."""

    code = "CDC-1100"


class SchemaChanged(ExactnessError):
    """The window contains DDL or TRUNCATE on a copied table, or row images with other columns than the table."""

    code = "CDC-1101"


class LogGone(ExactnessError):
    """The log no longer reaches back to the initial position, or the log is incomplete because the server crashed."""

    code = "CDC-1102"


class SourceReplaced(ExactnessError):
    """The server that answers is not the server on which the run began."""

    code = "CDC-1103"


class ImageNotWhole(ExactnessError):
    """A row image lacks columns, or a change was logged as a statement."""

    code = "CDC-1104"


class CascadeNotLogged(ExactnessError):
    """A foreign key may have changed rows of a copied table, and the log omits such changes."""

    code = "CDC-1105"


class UnknownEvent(ExactnessError):
    """A log event that this reader does not know."""

    code = "CDC-1106"


class CopyMismatch(ExactnessError):
    """The rows that were read contradict the log."""

    code = "CDC-1107"


class SourceUnavailable(TransientError):
    """The server cannot be reached, or it ended the session.

    ``is_starting``: the server reported that it is starting up or recovering from a crash, so waiting helps.
    """

    is_starting = False

    code = "CDC-1501"


class StorageUnavailable(TransientError, OSError):
    """The lake's store cannot be reached, is full, or failed. This error is also an `OSError`, like
    `StorageRefused`."""

    code = "CDC-1502"


class LockNotGranted(TransientError):
    """The lock was not granted within the time limit."""

    code = "CDC-1503"


class SparkFailed(TransientError):
    """A Spark application ended without reporting a reason: it was killed, or it never started."""

    code = "CDC-1504"


class PublishIncomplete(TransientError):
    """Publishing stopped half-way. Running the task again completes it."""

    code = "CDC-1505"


class CommitUnknown(TransientError):
    """It is unknown whether the run was published. Running the task again finds out."""

    code = "CDC-1506"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Add a note to each unexpected error. The note names the object in progress, such as a table or a part of a
    table."""
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        error.add_note(what)
        raise
