"""Benchmarks of the service, over HTTP and in a browser."""
