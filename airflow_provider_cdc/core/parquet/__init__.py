"""Writes Parquet files, parses their footers, and copies their column chunks."""
