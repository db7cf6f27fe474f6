"""Lists in pages: signed cursors, and pages of lists that are short enough to be read as a whole.

A cursor says where the next page starts. It grants nothing: every page checks the caller's rights again.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query, Request

from leaseway.api.errors import Problem
from leaseway.api.routing import DocumentPage
from leaseway.api.service import get_service
from leaseway.domain.identity import Caller

T = TypeVar("T")
D = TypeVar("D")
PageLimit = Annotated[int, Query(ge=1, le=200)]
MAC_BYTES = 16
CURSOR_LENGTH_MAX = 400


def paginate(
    request: Request,
    caller: Caller,
    items: Sequence[T],
    key: Callable[[T], str],
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[T], str | None]:
    """One page of a list, and the cursor of the next page. The cursor names the last item of the page, by its `key`;
    the list must be in a stable order."""
    secret, context = get_service(request).settings.cursor_secret, f"{request.url.path} {caller.name}"
    start = 0 if cursor is None else index_after(decode_cursor(secret, cursor, context), [key(item) for item in items])
    shown = items[start : start + limit]
    has_more = start + limit < len(items)
    return shown, encode_cursor(secret, fingerprint(key(shown[-1])), context) if has_more else None


def build_page(
    request: Request,
    caller: Caller,
    items: Sequence[T],
    key: Callable[[T], str],
    document: Callable[[T], D],
    limit: int,
    cursor: str | None,
) -> DocumentPage[D]:
    """The same as `paginate`, with items as documents."""
    shown, more = paginate(request, caller, items, key, limit, cursor)
    return DocumentPage([document(item) for item in shown], more)


def index_after(mark: str, keys: Sequence[str]) -> int:
    for index, key in enumerate(keys):
        if fingerprint(key) == mark:
            return index + 1
    raise Problem(400, "bad_cursor", "cursor: the item that it refers to is gone; start again without a cursor")


def fingerprint(key: str) -> str:
    """Keys can be longer than a cursor."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


# -- cursors --------------------------------------------------------------------------------------------------------


def encode_cursor(secret: bytes, position: str, context: str) -> str:
    """`context` names the list and its reader: a cursor is valid for this list and this reader only."""
    raw = position.encode()
    return base64.urlsafe_b64encode(signature(secret, raw, context) + raw).decode().rstrip("=")


def decode_cursor(secret: bytes, cursor: str, context: str) -> str:
    try:
        if len(cursor) > CURSOR_LENGTH_MAX:
            raise ValueError
        signed = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mac, raw = signed[:MAC_BYTES], signed[MAC_BYTES:]
        if not raw or not hmac.compare_digest(mac, signature(secret, raw, context)):
            raise ValueError
        return raw.decode()
    except (ValueError, binascii.Error) as error:
        raise Problem(400, "bad_cursor", "cursor: invalid, or of another list; start again without a cursor") from error


def signature(secret: bytes, raw: bytes, context: str) -> bytes:
    return hmac.digest(secret, context.encode() + b"\n" + raw, hashlib.sha256)[:MAC_BYTES]
