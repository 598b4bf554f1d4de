"""Apps for workers under fire."""
