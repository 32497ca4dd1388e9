"""The binary log: read as a stream of events, walked by a kernel, netted."""
