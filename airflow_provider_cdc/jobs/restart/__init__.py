"""Restarts of tables that were altered while a run was working: the run goes on at a later position."""
