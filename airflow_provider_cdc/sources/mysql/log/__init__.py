"""The binary log: its events are received as a stream, parsed by a kernel, and netted."""
