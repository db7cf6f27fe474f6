"""The statements of the store, one verb per file, by file name."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

SQL = files(__package__) / "sql"


@cache
def statements() -> Mapping[str, str]:
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in SQL.iterdir() if file.is_file()}


@cache
def migrations() -> tuple[str, ...]:
    """In order; the first one makes version 1."""
    scripts = sorted((SQL / "migrations").iterdir(), key=lambda file: file.name)
    return tuple(script.read_text("utf-8") for script in scripts)
