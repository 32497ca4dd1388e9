"""`dev/bench`: how fast the steps are, what they cost the source, and how peers compare in the same run."""
