"""The service of the API tests: over SQLite and PostgreSQL, with and without keys."""

from tests.api.conftest import app, patience, served, served_with_keys, store_url

__all__ = ["app", "patience", "served", "served_with_keys", "store_url"]
