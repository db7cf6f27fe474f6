"""JSON output. Its documents are those of the HTTP API, so that programs read the same everywhere."""

import json
import sys
from typing import Any

from msgspec import to_builtins


def document(value: Any) -> None:
    """Print the one document of a command."""
    print(json.dumps(value, indent=2, default=to_builtins, ensure_ascii=not _is_unicode()))


def line(value: Any) -> None:
    """Print one of many documents, as a JSON line."""
    print(json.dumps(value, default=to_builtins, ensure_ascii=not _is_unicode()))


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
