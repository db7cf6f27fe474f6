"""request body ─► [strict JSON] ─► struct

Bodies are bounded in size, depth and time. Duplicate keys, NaN, NUL characters and unknown fields are rejected, because
other JSON readers may interpret them differently.
"""

import asyncio
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from starlette.requests import Request

from leaseway.api.errors import Problem
from leaseway.domain.errors import BadValue

T = TypeVar("T")

BYTES_MAX = 256 * 1024
BULK_BYTES_MAX = 8 * 1024 * 1024
DEPTH_MAX = 64
LOCATION = re.compile(r" - at `\$([^`]*)`$")
"""How msgspec reports the location of an error."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string, terminated or not, so that it matches wherever a string starts and no byte is read twice."""
NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""An escaped NUL, but not an escaped backslash that is followed by "u0000"."""
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level deeper or less deep; -1 as a byte is 255."""
BODY_SECONDS_MAX = 30.0
"""A client that takes longer to send its body occupies a connection for nothing."""


async def read_body(request: Request, kind: type[T], bytes_max: int = BYTES_MAX) -> T:
    raw = await read_bytes(request, bytes_max)
    check_content_type(request)
    return parse_strictly(raw, kind)


def check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("application/json", ""):
        raise Problem(415, "not_json", f"the body must be application/json (is {content_type[:100]})")


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """The body. At most `bytes_max` bytes are kept in memory, whatever Content-Length says."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > bytes_max:
        raise too_large(bytes_max)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "encoded", "compressed bodies are not supported; send the body without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await read_chunks(request, bytes_max)
    except TimeoutError as error:
        detail = f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds"
        raise Problem(408, "too_slow", detail, headers={"Connection": "close"}) from error


async def read_chunks(request: Request, bytes_max: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "too_large", f"the body must have at most {bytes_max:,} bytes")


def parse_strictly(raw: bytes, kind: type[T]) -> T:
    check_json(raw)
    return decode(raw, kind)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode text that `check_json` has accepted, or a part of it."""
    try:
        return cast(T, decoder_for(cast(Any, kind)).decode(raw))
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is not JSON: {error}") from error


@cache
def decoder_for(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def invalid_field(text: str) -> Problem:
    found = LOCATION.search(text)
    location = "" if found is None else found.group(1)
    pointer = "/" + location.replace("[", ".").replace("]", "").strip(".").replace(".", "/") if location else ""
    reason = text if found is None else text[: found.start()]
    detail = f"{location.lstrip('.') or 'the body'}: {reason}"
    return Problem(422, "invalid", detail, errors=[{"pointer": pointer, "detail": reason}])


def check_json(raw: bytes) -> None:
    """Reject what a lenient reader would accept and two readers might read differently."""
    if not raw.strip():
        raise Problem(400, "not_json", "the body is empty; send a JSON object")
    if b"\x00" in raw or (b"\\u0000" in raw and NUL.search(raw)):
        raise Problem(400, "nul", "text must not contain NUL characters, because databases cannot store them")
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and is_deeper_than(raw, DEPTH_MAX):
        raise Problem(400, "too_deep", f"the body must be nested at most {DEPTH_MAX} levels deep")
    try:
        STRICT.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise Problem(400, "not_json", f"the body is not JSON: {error}") from error


def is_deeper_than(raw: bytes, depth_max: int) -> bool:
    """Without a Python loop over the text, which would block the event loop. Unbalanced brackets are left to the
    JSON decoder."""
    steps = array("b", STRING.sub(b"", raw).translate(STEPS, NO_BRACKETS))
    return max(accumulate(steps), default=0) > depth_max


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # One pass: an object may have as many keys as fit into a body.
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice[:100]!r}")
    return value


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


STRICT = json.JSONDecoder(object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)


@contextmanager
def body_fields(what: str, default: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Report the domain's errors about "limit maps: burst" as errors of the body's field /burst.

    `default`: the field for errors about the whole value. `names`: fields that have another name in the body."""
    try:
        yield
    except BadValue as error:
        if error.field != what and not error.field.startswith(f"{what}:"):
            raise
        part = error.field.removeprefix(what).removeprefix(":").strip().partition(":")[0]
        raise BadValue((names or {}).get(part, part) or default, error.problem) from error
