"""What `preflight` finds out of the lake and of earlier runs, and how it tells the plan."""
