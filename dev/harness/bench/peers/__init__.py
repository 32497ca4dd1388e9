"""The contenders, one module each. ``prepare(address)`` imports and starts what it needs, and returns the function that
does the work."""
