"""Many machines, one server: jobs in PostgreSQL."""
