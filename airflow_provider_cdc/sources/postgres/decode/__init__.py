"""Decodes values from the bytes of a COPY and from the texts in the log. Both sources give the same Arrow arrays."""
