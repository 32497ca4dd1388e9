"""What each step of a run does on MySQL."""
