"""Values of rows as Python objects, to show them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def plain_value(scalar: pa.Scalar) -> Any:
    """Return a value as a Python object.

    Dates and times before the year 1 or after the year 9999 become text, because Python cannot hold them.
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_nested(scalar.type):
            return [plain_value(element) for element in scalar.values]
        return f"{scalar.value:,} {'days' if pa.types.is_date(scalar.type) else 'microseconds'} after 1970-01-01"
