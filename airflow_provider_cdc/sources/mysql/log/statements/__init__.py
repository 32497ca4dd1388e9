"""Statements in the binary log: their grammar and what they change."""
