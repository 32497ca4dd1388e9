"""The replication slot: its messages, walked by a kernel, netted."""
