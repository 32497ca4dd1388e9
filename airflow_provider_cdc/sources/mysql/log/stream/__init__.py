"""The event stream that the server sends."""
