"""A run: its folder, ledger, manifest, commit and results."""
