"""The log since each start of a run: its recorded pieces, and the rest at the source."""
