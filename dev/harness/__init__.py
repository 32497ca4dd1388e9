"""Private servers for tests, demo and benches: installed on this machine, or fetched without root."""
