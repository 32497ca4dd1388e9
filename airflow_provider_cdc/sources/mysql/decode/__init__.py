"""Decodes values from the bytes of result rows and of log images to Arrow arrays; both give the same arrays."""
