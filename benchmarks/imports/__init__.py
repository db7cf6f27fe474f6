"""Benchmarks of whole imports: `leaseway import run` compared with dlt, on one fake provider."""
