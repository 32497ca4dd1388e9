"""The MySQL server: driver, sessions, settings, privileges, log history."""
