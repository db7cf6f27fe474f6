"""Idempotency-Key: which request is the same one again.

The header is a structured-field string, "…"; without quotes it is taken too, because many clients send it so. It
becomes the job's key: the store keeps key and job in one transaction, for each tenant apart. Whoever comes with the
same key while the first request is being written waits for it, and is told 409 only if that takes seconds. What fails
on our side stores both or neither, and is not remembered: the same request again is answered as if it were the first.
"""

import hashlib
import re

from starlette.datastructures import Headers

from leaseway.api.errors import Problem
from leaseway.domain.validators import NAME_LENGTH_MAX

HEADER = "idempotency-key"
REPLAYED = {"Idempotent-Replayed": "true"}
QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
BARE = re.compile(r"[A-Za-z0-9._:/+=@*-]+")
ESCAPED = re.compile(r'\\(["\\])')


def key_of(headers: Headers, in_body: str | None) -> str | None:
    """From the header or from the body; both may be there if they say the same."""
    given = headers.getlist(HEADER)
    if not given:
        return in_body
    key = text_of(given[0].strip()) if len(given) == 1 else None
    if not key or len(key) > NAME_LENGTH_MAX:
        raise Problem(
            400, "bad_idempotency_key",
            f'Idempotency-Key: must be one string of 1 to {NAME_LENGTH_MAX} printable characters, in quotes: "…"',
        )  # fmt: skip
    if in_body is not None and in_body != key:
        raise Problem(422, "invalid", "key: says something else than the header Idempotency-Key; leave one of them out")
    return key


def refuse_key(headers: Headers) -> None:
    """Where one key would stand for many jobs. Who sends it relies on it, and must not be left in that belief."""
    if HEADER in headers:
        raise Problem(
            400, "bad_idempotency_key", "Idempotency-Key: is for one job; give each item a key of its own: items[].key"
        )


def text_of(field: str) -> str | None:
    quoted = QUOTED.fullmatch(field)
    if quoted is not None:
        return ESCAPED.sub(r"\1", quoted[1])
    return field if BARE.fullmatch(field) else None


def fingerprint_of(kind: str, payload: str, options: str) -> str:
    """Tells this request from another under the same key. Without options it is the one that `submit()` in Python has,
    so that both may send the same job."""
    return hashlib.sha256(f"{kind}\n{payload}{options and chr(10)}{options}".encode()).hexdigest()
