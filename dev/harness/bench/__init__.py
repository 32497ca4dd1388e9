"""`dev/bench`: measures the steps of this package (``ours``), their cost for the source, and peers in the same run."""
