"""Small protocols without bodies. Each docstring states the promise that an implementation must keep."""
