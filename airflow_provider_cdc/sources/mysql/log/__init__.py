"""Reads the binary log: receives its events as a stream, parses them in a kernel, and computes net changes."""
