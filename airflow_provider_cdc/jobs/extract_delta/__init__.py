"""The step ``extract_delta``: the net changes of a run's windows."""
