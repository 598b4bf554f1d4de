"""Apps that real workers import."""
