"""Private servers for tests, demo and benches: found on this machine, or fetched without root."""
