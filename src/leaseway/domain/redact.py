"""Addresses of stores, as far as everybody may see them."""

import re


def shown(url: str) -> str:
    """Without its password: even one that holds characters which should have been written otherwise."""
    return re.sub(r"(//[^/?#@:]*):.*@", r"\1:***@", re.sub(r"(password=)[^&]*", r"\1***", url))
