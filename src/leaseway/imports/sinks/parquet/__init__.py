"""A sink for Parquet files: `sink` is the port, `files` writes and publishes the files."""
