"""The MySQL server: driver, sessions, settings, privileges, the history of its log."""
