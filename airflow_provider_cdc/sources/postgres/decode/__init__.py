"""Decodes values to Arrow arrays, from the bytes of a COPY and from the texts in the log. Both give the same arrays."""
