"""The PostgreSQL server: sessions, TLS, settings, privileges."""
