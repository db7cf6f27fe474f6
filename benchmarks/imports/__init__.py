"""Whole imports, measured: `leaseway import run` beside dlt, on one stand-in provider."""
