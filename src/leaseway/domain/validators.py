"""Plain values as people write them: names, and whole numbers."""

from leaseway.domain.errors import BadValue

NAME_LENGTH_MAX = 200


def name_of(field: str, value: object) -> str:
    """Printable text of a bounded length."""
    if not isinstance(value, str):
        raise BadValue(field, f"must be text (is {type(value).__name__})")
    if not value or len(value) > NAME_LENGTH_MAX or not value.isprintable():
        raise BadValue(field, f"must be 1 to {NAME_LENGTH_MAX} printable characters (is {value[:40]!r})")
    return value


def whole_number(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(field, f"must be a whole number (is {value!r})")
    if not least <= value <= most:
        raise BadValue(field, f"must lie in {least:,} … {most:,} (is {value:,})")
    return value
