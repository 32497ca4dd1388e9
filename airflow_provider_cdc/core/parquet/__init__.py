"""Parquet files: writing them, reading their footers, copying column chunks."""
