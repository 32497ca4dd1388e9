"""Whether a run is under way or has ended: the proofs, and the turns of runs that share tables."""
