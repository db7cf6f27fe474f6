"""TODO: the map of this package."""
