"""Decodes values from the bytes of result rows and of log images to Arrow arrays. For the same rows, both sources give
the same arrays."""
