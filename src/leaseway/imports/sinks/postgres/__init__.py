"""A sink for PostgreSQL: `sink` is the port, `tables` creates and checks tables."""
