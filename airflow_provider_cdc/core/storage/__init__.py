"""Stores, URIs, and records that only one writer can make."""
