"""Statements in the binary log: their grammar and their effects on tables."""
