"""Launchers: each starts, follows and ends the Spark applications of the steps in one way."""
