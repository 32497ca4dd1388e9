"""Compiles kernels, and gives them access to the bytes of a buffer.

A kernel is a function over ``uint8`` arrays that Numba compiles to machine code without Python objects. Values in
buffers may have any address, so the loads here are unaligned. **The loads do not check bounds**: a kernel must first
check that the bytes to read are inside the array, and return a code if they are not. Integers of every width are
returned as ``int64``, because Numba converts the sum of a signed and an unsigned integer to a float. An eight-byte load
returns its 64 bits as a signed integer.

**A sum, difference or product of int64 must not overflow**: Numba promises LLVM that no such operation overflows. So
the result of an overflow may be any value, and the compiled copies of one operation may have different results. Use
`wrapping_add` and `wrapping_multiply` where the result may wrap around.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Computes digests of the sources that a kernel is compiled from. The digests ensure that cached machine code is not
# run after one of these sources has changed. A kernel is a function that Numba compiles.
#
# Numba's cache depends only on the source of the kernel's own module. But functions and constants of imported modules
# are compiled into the kernel, too. So after an upgrade that changes only an imported module, Numba would run the old
# code.


_PACKAGE = __name__.partition(".")[0]
_IMPORT = re.compile(rf"^from ({_PACKAGE}[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)


@cache
def digest(module: str) -> str:
    """Return a digest of the sources of ``module`` and of all modules of this package that it imports.

    :raises OSError: a source cannot be read.
    """
    sources: dict[str, str] = {}
    _collect(module, sources)
    whole = hashlib.sha256()
    for name in sorted(sources):
        whole.update(f"{name}\0{sources[name]}\0".encode())
    return whole.hexdigest()[:16]


def _collect(name: str, sources: dict[str, str]) -> None:
    source = _source(sys.modules[name])
    sources[name] = source
    for origin, names in _IMPORT.findall(source):
        # The imported name may be the name of a module.
        for imported in (origin, *(f"{origin}.{word}" for word in re.findall(r"\w+", names))):
            if imported in sys.modules and imported not in sources:
                _collect(imported, sources)


@cache
def _source(module: ModuleType) -> str:
    loader: Any = module.__loader__
    source = loader.get_source(module.__name__) if hasattr(loader, "get_source") else None
    if source is None:
        raise OSError(f"{module.__name__} has no source")
    return str(source)


Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile ``function`` at its first call, and cache the machine code for later processes. The compiled function
    runs without the GIL.

    If no cache directory is writable, each process compiles the function again.
    """
    compiled: Any
    try:
        # The name of Numba's cache file contains the qualified name.
        function.__qualname__ += f"_{digest(function.__module__)}"
        compiled = numba.njit(cache=True, nogil=True)(function)
        # For a module in a zip, Numba checks the cache directory only after compiling, and then fails. So check it now.
        place = Path(compiled.stats.cache_path)
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(place)
    except (RuntimeError, OSError):
        compiled = numba.njit(nogil=True)(function)
    return cast(_Function, compiled)


def inner(function: _Function) -> _Function:
    """Compile a function that is called only by kernels, and does not create arrays. The machine code of the function
    is cached with the code of these kernels.

    The compiled function cannot be called from Python. It does not count references, which would take two locked
    instructions per array and call. So it runs about twice as fast as a kernel that another kernel calls, and compiles
    in about half the time.
    """
    compile_inner = numba.njit(
        _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", nogil=True
    )
    return cast(_Function, compile_inner(function))


class _View:
    """Exposes the memory of a buffer to NumPy. The array references the buffer, so the memory lives as long as the
    array."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "data": (buffer.address, False),
            "shape": (buffer.size,),
            "typestr": "|u1",
            "version": 3,
        }


def bytes_of(buffer: pa.Buffer | None) -> Bytes:
    """Return the bytes of ``buffer`` without copying them. Kernels must only read them.

    NumPy would mark the array of an immutable buffer as read-only. A read-only array has another type in Numba, so each
    kernel would be compiled twice.
    """
    if buffer is None or buffer.size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_View(buffer))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


def _address(context: Any, builder: Any, array_type: Any, array: Any, position: Any, bits: int) -> Any:
    return builder.bitcast(_pointer(context, builder, array_type, array, position), ir.IntType(bits).as_pointer())


def _loader(bits: int, big_endian: bool = False) -> Any:
    """Return an intrinsic ``(data, position) -> int64`` that reads ``bits`` bits, zero-extended."""

    def load(typing_context: Any, data: Any, position: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _address(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            value = builder.load(address)
            value.align = 1
            if big_endian:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(data, types.int64), generate

    load.__name__ = f"load{bits}{'be' if big_endian else 'le'}"
    return intrinsic(load)


def _storer(bits: int) -> Any:
    """Return an intrinsic ``(data, position, value)`` that writes the low ``bits`` bits of an int64, little-endian."""

    def store(typing_context: Any, data: Any, position: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _address(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            narrow = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(narrow, address).align = 1
            return context.get_dummy_value()

        return types.void(data, types.int64, types.int64), generate

    store.__name__ = f"store{bits}"
    return intrinsic(store)


load8 = _loader(8)
load16 = _loader(16)
load32 = _loader(32)
load64 = _loader(64)
load16be = _loader(16, big_endian=True)
load32be = _loader(32, big_endian=True)
load64be = _loader(64, big_endian=True)
store8 = _storer(8)
store16 = _storer(16)
store32 = _storer(32)
store64 = _storer(64)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, at: Any, source: Any, position: Any, count: Any) -> Any:
    """Execute ``target[at : at + count] = source[position : position + count]``; the two ranges may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        whence = _pointer(context, builder, signature.args[2], arguments[2], arguments[3])
        cgutils.raw_memmove(builder, to, whence, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@inner
def same_bytes(data: Bytes, position: int, other: Bytes, other_position: int, count: int) -> bool:
    """Return whether ``count`` bytes of ``data`` and ``other`` are equal."""
    index = 0
    while index + 8 <= count:
        if load64(data, position + index) != load64(other, other_position + index):
            return False
        index += 8
    while index < count:
        if load8(data, position + index) != load8(other, other_position + index):
            return False
        index += 1
    return True


def _wrapping(operation: str) -> Any:
    """Return an intrinsic ``(int64, int64) -> int64`` modulo 2**64."""

    def wrapping(typing_context: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return types.int64(types.int64, types.int64), generate

    wrapping.__name__ = f"wrapping_{operation}"
    return intrinsic(wrapping)


wrapping_add = _wrapping("add")
wrapping_multiply = _wrapping("mul")


@inner
def load_le(data: Bytes, position: int, width: int) -> int:
    """Return the little-endian unsigned integer of ``width`` (0 to 8) bytes at ``position``."""
    value = 0
    for index in range(width):
        value |= load8(data, position + index) << (8 * index)
    return value


@inner
def load_be(data: Bytes, position: int, width: int) -> int:
    """Return the big-endian unsigned integer of ``width`` (0 to 8) bytes at ``position``."""
    value = 0
    for index in range(width):
        value = (value << 8) | load8(data, position + index)
    return value


@inner
def negative_128(low: int, high: int) -> tuple[int, int]:
    """Return ``-(high, low)`` as ``(low, high)``."""
    return -low, ~high + (1 if low == 0 else 0)


@intrinsic
def multiply_add_128(typing_context: Any, low: Any, high: Any, factor: Any, addend: Any) -> Any:
    """Return ``(high, low) * factor + addend`` as ``(low, high)``, a 128-bit integer in two int64.

    ``factor`` and ``addend`` must not be negative.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        parts = [builder.zext(argument, wide) for argument in arguments]
        value = builder.or_(parts[0], builder.shl(parts[1], ir.Constant(wide, 64)))
        value = builder.add(builder.mul(value, parts[2]), parts[3])
        word = ir.IntType(64)
        halves = [builder.trunc(value, word), builder.trunc(builder.lshr(value, ir.Constant(wide, 64)), word)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64, types.int64), generate
