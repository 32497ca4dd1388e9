"""Instruments kernels to detect overflows, shifts that are too far, floats that do not fit an integer, and accesses
outside of arrays.

These are undefined behaviour in LLVM: it may omit a comparison, or compile two copies of the same code differently. A
kernel with such an error may work until then.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.lowering import BaseLower

from airflow_provider_cdc.core import kernels as kernel

_PACKAGE = "airflow_provider_cdc/"
_MOST_PLACES = 1 << 20
_INT64 = ir.IntType(64)
_BYTE = ir.IntType(8)
_OVERFLOWS = {"add": "sadd", "sub": "ssub", "mul": "smul"}
_SHIFTS = ("shl", "ashr", "lshr")


class KernelWatch:
    """Instruments the kernels that this process compiles from now on. This cannot be undone, and does not affect other
    processes."""

    def __init__(self) -> None:
        self._flags = np.zeros(_MOST_PLACES, np.uint8)
        self._places: list[str] = []
        # For each pointer of a copy: its position, and the size of its array.
        self._ends: dict[Any, tuple[Any, Any]] = {}
        # The compiled code contains addresses of this process, so no other process may load it from the cache.
        self._cache = tempfile.TemporaryDirectory(prefix="cdc-watched-")
        numba.config.CACHE_DIR = self._cache.name
        numba.config.BOUNDSCHECK = 1
        for name, what in _OVERFLOWS.items():
            self._watch_overflows(name, what)
        for name in _SHIFTS:
            self._watch_shifts(name)
        self._watch_floats()
        self._watch_loads()
        self._watch_copies()

    def seen(self) -> list[str]:
        """Return the errors that were detected since the last call: description, file and line."""
        found = np.flatnonzero(self._flags)
        self._flags[found] = 0
        return sorted({self._places[place] for place in found})

    def _note(self, builder: Any, what: str, happens: Any) -> None:
        """Add code that records an error if the bit ``happens`` is set."""
        if (where := _line_that_is_compiled()) is None:
            return
        address = self._flags.ctypes.data + len(self._places)
        self._places.append(f"{what} in {where}")
        flag = builder.inttoptr(ir.Constant(_INT64, address), _BYTE.as_pointer())
        builder.store(builder.or_(builder.load(flag), builder.zext(happens, _BYTE)), flag)

    def _watch_overflows(self, name: str, what: str) -> None:
        plain = getattr(ir.IRBuilder, name)

        def watched(builder: Any, one: Any, other: Any, name: str = "", flags: Any = ()) -> Any:
            if "nsw" not in flags or one.type != _INT64:
                return plain(builder, one, other, name=name, flags=flags)
            both = ir.FunctionType(ir.LiteralStructType([_INT64, ir.IntType(1)]), [_INT64, _INT64])
            intrinsic = cgutils.get_or_insert_function(builder.module, both, f"llvm.{what}.with.overflow.i64")
            found = builder.call(intrinsic, [one, other])
            self._note(builder, "an overflow", builder.extract_value(found, 1))
            return builder.extract_value(found, 0)

        setattr(ir.IRBuilder, name, watched)

    def _watch_shifts(self, name: str) -> None:
        plain = getattr(ir.IRBuilder, name)

        def watched(builder: Any, value: Any, bits: Any, name: str = "", flags: Any = ()) -> Any:
            if value.type == _INT64:
                self._note(builder, "a shift too far", builder.icmp_unsigned(">", bits, ir.Constant(_INT64, 63)))
            return plain(builder, value, bits, name=name, flags=flags)

        setattr(ir.IRBuilder, name, watched)

    def _watch_floats(self) -> None:
        plain = ir.IRBuilder.fptosi

        def watched(builder: Any, value: Any, integer: Any, name: str = "") -> Any:
            if integer == _INT64:
                low, high = (ir.Constant(value.type, bound) for bound in (-(2.0**63), 2.0**63))
                fits = builder.and_(builder.fcmp_ordered(">=", value, low), builder.fcmp_ordered("<", value, high))
                self._note(builder, "a float that is no integer", builder.not_(fits))
            return plain(builder, value, integer, name=name)

        ir.IRBuilder.fptosi = watched

    def _watch_loads(self) -> None:
        plain: Callable[..., Any] = kernel._address

        def watched(context: Any, builder: Any, array_type: Any, array: Any, position: Any, bits: int) -> Any:
            elements = -(-bits // array_type.dtype.bitwidth)
            size = context.make_array(array_type)(context, builder, array).nitems
            self._note_outside(builder, "a load or store outside", position, ir.Constant(_INT64, elements), size)
            return plain(context, builder, array_type, array, position, bits)

        kernel._address = watched

    def _watch_copies(self) -> None:
        plain_pointer: Callable[..., Any] = kernel._pointer
        plain_copy: Callable[..., Any] = cgutils.raw_memmove

        def pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
            found = plain_pointer(context, builder, array_type, array, position)
            self._ends[found] = position, context.make_array(array_type)(context, builder, array).nitems
            return found

        def copy(builder: Any, to: Any, whence: Any, count: Any, itemsize: Any, align: int = 1) -> Any:
            for end in (to, whence):
                if end in self._ends:
                    position, size = self._ends[end]
                    self._note_outside(builder, "a copy from or to outside", position, count, size)
            self._ends.clear()
            return plain_copy(builder, to, whence, count, itemsize, align)

        kernel._pointer = pointer
        cgutils.raw_memmove = copy

    def _note_outside(self, builder: Any, what: str, position: Any, count: Any, size: Any) -> None:
        """Record an error if ``count`` elements from ``position`` on exceed an array of ``size`` elements."""
        none = ir.Constant(_INT64, 0)
        before = builder.or_(builder.icmp_signed("<", position, none), builder.icmp_signed("<", count, none))
        behind = builder.icmp_signed(">", builder.add(position, count), size)
        some = builder.icmp_signed("!=", count, none)
        self._note(builder, what, builder.and_(some, builder.or_(before, behind)))


def _line_that_is_compiled() -> str | None:
    """Return the file and line that Numba is compiling; None if they are not in this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        compiler = frame.f_locals.get("self")
        if isinstance(compiler, BaseLower):
            _, found, file = str(compiler.loc.filename).rpartition(_PACKAGE)
            return f"{file}:{compiler.loc.line}" if found else None
        frame = frame.f_back
    return None
