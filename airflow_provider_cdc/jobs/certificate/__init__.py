"""Certificates: checks the totals of copies, checks old files for damage, and composes the certificates."""
