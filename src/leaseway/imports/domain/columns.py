"""The types of projected columns, and the names that a sink keeps for itself."""

from enum import StrEnum


class ColumnType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    """Of 64 bits."""
    REAL = "real"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """As an `Instant`: microseconds since 1970."""
    JSON = "json"
    """Any part of a document, as canonical JSON text."""


RESERVED = frozenset(
    {
        "source",
        "external_id",
        "stamp",
        "content_hash",
        "document",
        "deleted_at",
        "deleted_reason",
        "run",
        "first_seen",
        "updated_at",
    }
)
