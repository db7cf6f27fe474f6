"""Logging and tracing: log writes log lines, otel writes spans. `wiring` decides whether tracing is on."""
