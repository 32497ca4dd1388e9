"""Certificates of copies: what a copy contains, at which position, in a form that others can check."""
