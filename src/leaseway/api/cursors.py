"""Opaque, signed places in a list. They say where to go on, and nothing about who may: every page asks that again."""

import base64
import binascii
import hashlib
import hmac

from leaseway.api.problems import Problem

MAC_BYTES = 16
TEXT_MAX = 400


def cursor_of(secret: bytes, place: str, about: str) -> str:
    """`about`: the list and whose it is. The cursor of one is no cursor of another."""
    raw = place.encode()
    return base64.urlsafe_b64encode(mac_of(secret, raw, about) + raw).decode().rstrip("=")


def place_of(secret: bytes, cursor: str, about: str) -> str:
    try:
        if len(cursor) > TEXT_MAX:
            raise ValueError
        signed = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mac, raw = signed[:MAC_BYTES], signed[MAC_BYTES:]
        if not raw or not hmac.compare_digest(mac, mac_of(secret, raw, about)):
            raise ValueError
        return raw.decode()
    except (ValueError, binascii.Error) as error:
        raise Problem(
            400, "bad_cursor", "cursor: this is none of ours, or of another list; start again without it"
        ) from error


def mac_of(secret: bytes, raw: bytes, about: str) -> bytes:
    return hmac.digest(secret, about.encode() + b"\n" + raw, hashlib.sha256)[:MAC_BYTES]
