"""The stream of events that the server sends."""
