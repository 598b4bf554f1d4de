"""Apps without a server."""
