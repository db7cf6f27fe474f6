"""The service, measured as those who use it see it: over HTTP and in a browser."""
