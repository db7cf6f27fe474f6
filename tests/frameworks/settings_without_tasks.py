"""Settings that do not name the backend."""

SECRET_KEY = "only for tests"
