"""The contenders, a module each: ``prepare(address)`` imports and starts what it needs and returns the copying."""
