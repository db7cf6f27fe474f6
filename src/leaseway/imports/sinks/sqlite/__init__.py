"""A sink for SQLite: `sink` is the port, `tables` creates and checks tables."""
