"""Answers in JSON on the screen. What is in them is said in `api.documents`: programs read the same everywhere."""

import json
import sys
from typing import Any


def document(value: Any) -> None:
    """The one answer of a command."""
    print(json.dumps(value, indent=2, ensure_ascii=not _is_unicode()))


def line(value: Any) -> None:
    """One of many answers."""
    print(json.dumps(value, ensure_ascii=not _is_unicode()))


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
