"""Logging and tracing: log_events and json_logging write log lines, tracing and otel write spans."""
