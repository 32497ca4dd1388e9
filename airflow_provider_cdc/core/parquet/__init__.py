"""Parquet files: writes them, parses their footers, and copies column chunks."""
