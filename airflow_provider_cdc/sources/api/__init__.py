"""The interface between databases and the rest of the package."""
