"""Patterns, selections and checks that both kinds of databases share."""
