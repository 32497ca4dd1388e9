"""Rolling published copies forward."""
