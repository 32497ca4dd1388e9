"""A run: its folder, manifest, steps, commit and results."""
