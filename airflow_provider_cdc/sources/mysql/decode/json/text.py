"""Converts the binary JSON in row images of the log to the text that a SELECT of the column prints.

The kernel of ``json.document`` converts the values of a column. This module raises an error for a value that the kernel
rejects.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import bytes_of
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.decode.json import values as json_values
from airflow_provider_cdc.sources.mysql.decode.json.document import MAX_DEPTH, write_documents

_LARGEST = 2**31 - 1

_REASONS = {
    json_values.UNKNOWN_TYPE: "an unsupported type",
    json_values.CUT_OFF: "a value that extends beyond the end of its container",
    json_values.BAD_OFFSET: "an offset that points into the entries of its container",
    json_values.OVERLAP: "values that overlap",
    json_values.TOO_DEEP: f"more than {MAX_DEPTH} levels",
    json_values.BAD_LENGTH: "a length of more than five bytes",
    json_values.BAD_LITERAL: "a literal other than null, true and false",
    json_values.BAD_DOUBLE: "a double that is not a number",
    json_values.BAD_DECIMAL: "a decimal of impossible size or digits",
    json_values.BAD_TIME: "an impossible date or time",
}


def json_text(data: bytes) -> str:
    """Return the text that MySQL prints for a binary JSON value. An empty value is null, as on the server.

    :raises DecodeError: `data` does not follow the format.
    """
    text: str = json_texts(pa.array([data], pa.binary()))[0].as_py()
    return text


def json_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Return `json_text` of every value of a column. Nulls remain null.

    :raises DecodeError: a value does not follow the format. ``where`` has the index of the value and the offset of the
        byte within the value.
    :raises ValueNotRepresentable: the total size of the texts is more than the maximum of an Arrow array (2 GiB).
    """
    count = len(values)
    if count == 0:
        return pa.array([], pa.string())
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = bytes_of(offsets_buffer).view(np.int32)[values.offset : values.offset + count + 1]
    data = bytes_of(data_buffer)
    valid = bytes_of(values.is_valid().cast(pa.uint8()).buffers()[1])[:count]

    # A text is usually about as long as its binary form. If it is longer, the buffer grows.
    out = np.empty(int(offsets[-1] - offsets[0]) * 2 + 1024, np.uint8)
    ends = np.zeros(count + 1, np.int64)
    status = np.zeros(2, np.int64)
    done = 0
    while (done := write_documents(data, offsets, valid, done, out, ends, status)) < count:
        code, at = status.tolist()
        if code != json_values.FULL:
            raise DecodeError(f"binary JSON holds {_REASONS[code]}", where=f"value {done}, byte {at}")
        grown = np.empty(2 * len(out), np.uint8)
        grown[: ends[done]] = out[: ends[done]]
        out = grown
    if ends[-1] > _LARGEST:
        raise ValueNotRepresentable(
            f"{count} JSON values take {ends[-1]} bytes as text, which is more than an Arrow array can hold",
            hint="read fewer rows at once",
        )
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if values.null_count else None
    texts = pa.StringArray.from_buffers(
        count, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out[: ends[-1]]), nulls
    )
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"binary JSON holds text that is not UTF-8: {error}") from error
    return texts
