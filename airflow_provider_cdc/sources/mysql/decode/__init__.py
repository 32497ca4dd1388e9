"""Decoding of values: from the bytes of rows and of log images to Arrow arrays, with the same result from both."""
