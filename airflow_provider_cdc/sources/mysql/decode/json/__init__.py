"""Conversion of MySQL's binary JSON to text."""
