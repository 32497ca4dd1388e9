"""`dev/bench`: how fast the steps are, what they cost the source, and how peers do beside them in the same run."""
