"""Modules for access to the PostgreSQL server: sessions, TLS, settings and privileges."""
