"""One file, many processes: jobs in SQLite."""
