"""Computes digests of the sources that a kernel is compiled from. The digests ensure that cached machine code is not
run after one of these sources has changed. A kernel is a function that Numba compiles.

Numba's cache depends only on the source of the kernel's own module. But functions and constants of imported modules are
compiled into the kernel, too. So after an upgrade that changes only an imported module, Numba would run the old code.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from types import ModuleType
from typing import Any

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
