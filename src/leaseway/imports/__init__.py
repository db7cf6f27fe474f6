"""Imports, put together: a spec becomes a plan, a plan becomes jobs, jobs fill a sink, and a run has an end."""
